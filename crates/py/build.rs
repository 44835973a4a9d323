//! Builds the CUDA emulator into `OUT_DIR`, from where maturin adds it to the wheel (`pyproject.toml`).
//!
//! It is a separate library that cargo cannot use as a dependency of another, so a second cargo builds it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

const LIBRARY: &str = "liboomph_emulator.so";

fn main() -> io::Result<()> {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("../emulator/Cargo.toml");
    println!("cargo:rerun-if-changed=build.rs");
    // Symbols of the interpreter come from the process that loads the module. maturin tells the linker, too.
    if env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "macos") {
        println!("cargo:rustc-cdylib-link-arg=-undefined");
        println!("cargo:rustc-cdylib-link-arg=dynamic_lookup");
    }
    // It takes the place of NVIDIA's libraries for Linux with glibc; elsewhere the wheel has none.
    let has_cuda = env::var("CARGO_CFG_TARGET_OS").is_ok_and(|os| os == "linux")
        && env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|libc| libc == "gnu");
    if env::var_os("CARGO_FEATURE_EMULATOR").is_none() || !has_cuda {
        return Ok(());
    }
    println!("cargo:rerun-if-changed={}", manifest.with_file_name("src").display());
    let variable = |name| env::var(name).map_err(io::Error::other);
    let out = PathBuf::from(variable("OUT_DIR")?);
    let (target, target_dir) = (variable("TARGET")?, out.join("emulator"));
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
        return Err(io::Error::other("the CUDA emulator could not be built"));
    }
    let folder = if profile == "dev" { "debug" } else { profile };
    fs::copy(target_dir.join(target).join(folder).join(LIBRARY), out.join(LIBRARY))?;
    Ok(())
}
