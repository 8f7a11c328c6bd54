//! How the Rust reads: short files, short functions, nothing left for later.

use std::path::PathBuf;

use syn::spanned::Spanned;
use syn::visit::{self, Visit};

use super::none;
use super::tree::files;

/// Lines of a file.
const FILE_LIMIT: usize = 500;

/// Lines of a function, from `fn` to its closing brace.
const FUNCTION_LIMIT: usize = 70;

/// Lines of `main.rs`: arguments → config → bind → run → exit code.
const MAIN_LIMIT: usize = 60;

/// What nobody may leave behind. Split, so that this file does not hold them itself.
const LEFTOVERS: [&str; 6] = [
    concat!("todo", "!("),
    concat!("unimplemented", "!("),
    concat!("dbg", "!("),
    concat!("#[ig", "nore"),
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
];

#[test]
fn files_are_short() {
    let long: Vec<_> = files("rs")
        .iter()
        .map(|(path, text)| (path, text.lines().count()))
        .filter(|(path, lines)| *lines > limit(path))
        .map(|(path, lines)| format!("{}: {lines} lines", path.display()))
        .collect();
    none("a file longer than its limit", &long);
}

fn limit(path: &PathBuf) -> usize {
    if path == &PathBuf::from("gateway/src/main.rs") { MAIN_LIMIT } else { FILE_LIMIT }
}

#[test]
fn functions_are_short_and_take_no_bool() {
    let (mut long, mut bools) = (Vec::new(), Vec::new());
    for (path, text) in files("rs") {
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let mut functions = Functions::default();
        functions.visit_file(&parsed);
        for function in functions.0 {
            let place = format!("{}:{} {}", path.display(), function.line, function.name);
            if function.lines > FUNCTION_LIMIT {
                long.push(format!("{place}: {} lines", function.lines));
            }
            if function.takes_bool {
                bools.push(place);
            }
        }
    }
    none("a function longer than 70 lines", &long);
    none("a bool parameter: an enum says what it means", &bools);
}

#[test]
fn nothing_is_left_for_later() {
    let mut left = Vec::new();
    for (path, text) in files("rs") {
        for (number, line) in text.lines().enumerate() {
            if LEFTOVERS.iter().any(|leftover| line.contains(leftover)) {
                left.push(format!("{}:{}: {}", path.display(), number + 1, line.trim()));
            }
        }
    }
    none("left for later", &left);
}

#[test]
fn every_file_says_what_it_is() {
    let silent: Vec<_> = files("rs")
        .iter()
        .filter(|(_, text)| !text.starts_with("//! "))
        .map(|(path, _)| path.display().to_string())
        .collect();
    none("a file without a module doc", &silent);
}

#[derive(Default)]
struct Functions(Vec<Function>);

struct Function {
    name: String,
    line: usize,
    lines: usize,
    takes_bool: bool,
}

impl Functions {
    fn add(&mut self, signature: &syn::Signature, block: &syn::Block) {
        let (first, last) = (signature.span().start().line, block.span().end().line);
        self.0.push(Function {
            name: signature.ident.to_string(),
            line: first,
            lines: last + 1 - first,
            takes_bool: signature.inputs.iter().any(is_bool),
        });
    }
}

fn is_bool(argument: &syn::FnArg) -> bool {
    let syn::FnArg::Typed(argument) = argument else { return false };
    matches!(&*argument.ty, syn::Type::Path(path) if path.path.is_ident("bool"))
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, function: &'ast syn::ItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_item_fn(self, function);
    }

    fn visit_impl_item_fn(&mut self, function: &'ast syn::ImplItemFn) {
        self.add(&function.sig, &function.block);
        visit::visit_impl_item_fn(self, function);
    }

    fn visit_trait_item_fn(&mut self, function: &'ast syn::TraitItemFn) {
        if let Some(block) = &function.default {
            self.add(&function.sig, block);
        }
        visit::visit_trait_item_fn(self, function);
    }
}
