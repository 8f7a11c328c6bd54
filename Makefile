# `make run` and `make test` also install what they need and this machine lacks; they say what.
# CARGO_TARGET_DIR is honoured everywhere.

.PHONY: help run test lint audit bench

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

run: ## build the gateway and start it on http://127.0.0.1:7777/mcp
	@.ci/need run
	cargo build --release --locked --package gateway
	@.ci/exec-gateway

test: ## everything that drives the real thing
	@.ci/need test
	@tests/run

lint: ## formatting, clippy, the scripts, licences and sources of dependencies
	@.ci/need lint
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- --deny warnings
	shellcheck .ci/need .ci/run .ci/exec-gateway tests/run tests/clients/install.sh tests/conformance/run
	cargo deny --locked --config .cargo-deny.toml check licenses bans sources

audit: ## known vulnerabilities in dependencies (needs the network)
	@.ci/need lint
	cargo deny --config .cargo-deny.toml check advisories

bench: ## the speed promises, as ratios measured side by side in one run
	@.ci/need run
	cargo build --release --locked --workspace
	cargo bench --locked --package tests --bench bench -- $(ROWS)
