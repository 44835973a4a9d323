//! Gives the program the stack on Windows that it has elsewhere: 8 MiB, not 1 MiB.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_ENV").is_ok_and(|linker| linker == "msvc") {
        println!("cargo:rustc-link-arg-bins=/STACK:8388608");
    }
}
