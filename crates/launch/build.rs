//! Compiles the Python part into the program: the packages of `python/oomph` that a recorded process
//! imports, as a list of files with their text.

use std::path::Path;
use std::{env, fs, io};

/// Packages of `python/oomph` that a recorded process imports.
const PACKAGES: [&str; 7] =
    ["bootstrap", "emulation", "heap", "interpreter", "job", "recording", "techniques"];

fn main() -> io::Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/oomph");
    let mut entries = String::new();
    for package in PACKAGES {
        let folder = root.join(package);
        println!("cargo:rerun-if-changed={}", folder.to_string_lossy());
        let mut names: Vec<String> = fs::read_dir(&folder)?
            .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
            .filter(|name| name.ends_with(".py"))
            .collect();
        names.sort();
        for name in names {
            let inside = format!("{package}/{name}");
            entries += &format!("({inside:?}, include_str!({:?})),\n", folder.join(name));
        }
    }
    let list = Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("python_files.rs");
    fs::write(list, format!("[\n{entries}]"))
}
