//! `cargo xtask`: tasks of this repository.

mod campaign;
mod ci;
mod docs;
mod lab;
mod lint;
mod nightly;
mod package;
mod progress;
mod setup;
mod steps;
mod suite;
mod vm;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::workspace::Workspace;

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Install what is missing: Debian packages, the BPF compiler, bpf-linker
    Setup(setup::Options),
    /// Run a cluster of two nodes in network namespaces with pods (see `demo --help`)
    #[command(disable_help_flag = true)]
    Demo(lab::Arguments),
    /// Run the tests; the last line is `N passed, N failed, N skipped`
    Test(suite::Options),
    /// Run benchmarks (see `bench --help`), compare the datapaths with the model (`bench equivalence`, `bench fuzz`), fuzz the decoders of OpenFlow (`bench fuzz-openflow`), and crash the embedded store (`bench lost-writes`)
    #[command(disable_help_flag = true)]
    Bench(lab::Arguments),
    /// Run the packet, conformance and OVS tests on other kernels under qemu
    Vm(vm::Options),
    /// Replay recorded REST conversations on a new netmaster and compare the answers
    #[command(disable_help_flag = true)]
    Replay(lab::Arguments),
    /// Check formatting, clippy, licences, imports between modules, wording and documents
    Lint(lint::Options),
    /// Build the packages (.deb and tarball) into target/package; with --check, install and upgrade them on clean machines
    Package(package::Options),
    /// Build the book and the API documentation
    Docs(docs::Options),
    /// Run what CI runs: setup, lint, all tests here, a part of the tests on other kernels
    Ci,
    /// Run every check and test, also the slow ones, and print a summary
    Nightly(nightly::Options),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            if !error.is::<suite::Failed>() {
                eprintln!("error: {error:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<()> {
    let workspace = Workspace::find()?;
    match command {
        Command::Setup(options) => setup::run(&workspace, &options),
        Command::Demo(arguments) => lab::run(&workspace, lab::Program::Demo, &arguments),
        Command::Test(options) => suite::run(&workspace, &options)?.finish(),
        Command::Bench(arguments) => lab::run(&workspace, lab::Program::Bench, &arguments),
        Command::Vm(options) => vm::run(&workspace, &options),
        Command::Replay(arguments) => lab::run(&workspace, lab::Program::Replay, &arguments),
        Command::Package(options) => package::run(&workspace, &options),
        Command::Lint(options) => lint::run(&workspace, &options),
        Command::Docs(options) => docs::run(&workspace, &options),
        Command::Ci => ci::run(&workspace),
        Command::Nightly(options) => nightly::run(&workspace, &options),
    }
}
