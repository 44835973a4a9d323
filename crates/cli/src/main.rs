//! The `oomph` command.

#[global_allocator]
static ALLOCATOR: oomph_cli::HugePages = oomph_cli::HugePages;

fn main() -> std::process::ExitCode {
    oomph_cli::run(std::env::args_os(), &oomph_cli::Host::default()).into()
}
