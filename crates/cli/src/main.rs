//! The `oomph` command.

fn main() -> std::process::ExitCode {
    oomph_cli::run(std::env::args_os())
}
