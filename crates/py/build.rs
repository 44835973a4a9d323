//! Builds the libraries that `oomph` loads into programs (the CUDA emulator, the tracer) into `OUT_DIR`, from
//! where maturin adds them to the wheel (`pyproject.toml`).
//!
//! They are separate libraries that cargo cannot use as dependencies of another, so a second cargo builds them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

const CRATES: [&str; 2] = ["emulator", "tracer"];

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    // Symbols of the interpreter come from the process that loads the module. maturin tells the linker, too.
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos") {
        println!("cargo:rustc-cdylib-link-arg=-undefined");
        println!("cargo:rustc-cdylib-link-arg=dynamic_lookup");
    }
    // They deal with NVIDIA's libraries for Linux with glibc; elsewhere the wheel has none.
    let has_cuda = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
        && env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "gnu");
    if env::var_os("CARGO_FEATURE_EMULATOR").is_none() || !has_cuda {
        return Ok(());
    }
    CRATES.into_iter().try_for_each(build)
}

fn build(name: &str) -> io::Result<()> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(name).join("Cargo.toml");
    println!("cargo:rerun-if-changed={}", manifest.with_file_name("src").display());
    let variable = |name| env::var(name).map_err(io::Error::other);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let (target, target_dir) = (variable("TARGET")?, out.join("libraries"));
    let profile = if variable("PROFILE")? == "release" { "release" } else { "dev" };
    let status = Command::new(variable("CARGO")?)
        .args(["build", "--quiet", "--lib", "--target", &target, "--profile", profile])
        .args(["--config", "profile.release.strip=true"])
        .arg("--manifest-path")
        .arg(&manifest)
        .arg("--target-dir")
        .arg(&target_dir)
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!("the library of crates/{name} could not be built")));
    }
    let folder = if profile == "dev" { "debug" } else { profile };
    let library = format!("liboomph_{name}.so");
    fs::copy(target_dir.join(target).join(folder).join(&library), out.join(&library))?;
    Ok(())
}
