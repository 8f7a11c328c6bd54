//! A new migration file is compiled in without a change of any source.
fn main() {
    println!("cargo:rerun-if-changed=../migrations");
}
