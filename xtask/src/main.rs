//! `cargo xtask`: everything that is done with this repository beside editing it.

mod campaign;
mod ci;
mod lab;
mod lint;
mod progress;
mod setup;
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
    /// Bring what is missing: Debian packages, the BPF compiler, bpf-linker
    Setup(setup::Options),
    /// Two nodes in namespaces, a master, agents, and pods that talk (`demo --help` tells the shapes)
    #[command(disable_help_flag = true)]
    Demo(lab::Arguments),
    /// Run all tests, or those of one crate; ends with `N passed, N failed, N skipped`
    Test(suite::Options),
    /// Measure (`bench --help` tells what); `bench equivalence` and `bench fuzz` hold the eBPF programs to the model
    #[command(disable_help_flag = true)]
    Bench(lab::Arguments),
    /// Run the packet and conformance tests on other kernels under qemu
    Vm(vm::Options),
    /// Play recorded REST conversations against a fresh netmaster and compare
    #[command(disable_help_flag = true)]
    Replay(lab::Arguments),
    /// Formatting, clippy, licences, import rules, and the commands in the documents
    Lint(lint::Options),
    /// What CI runs: setup, lint, tests here, tests on other kernels
    Ci,
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
        Command::Test(options) => suite::run(&workspace, &options),
        Command::Bench(arguments) => lab::run(&workspace, lab::Program::Bench, &arguments),
        Command::Vm(options) => vm::run(&workspace, &options),
        Command::Replay(arguments) => lab::run(&workspace, lab::Program::Replay, &arguments),
        Command::Lint(options) => lint::run(&workspace, &options),
        Command::Ci => ci::run(&workspace),
    }
}
