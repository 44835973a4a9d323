//! Makes the Python half, `python/oomph/child`, part of the program: a list of its files with their text.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/oomph/child");
    println!("cargo:rerun-if-changed={}", folder.display());
    let mut names: Vec<String> = fs::read_dir(&folder)?
        .filter_map(|entry| Some(entry.ok()?.file_name().to_string_lossy().into_owned()))
        .filter(|name| name.ends_with(".py"))
        .collect();
    names.sort();
    let entries: String =
        names.iter().map(|name| format!("({name:?}, include_str!({:?})),\n", folder.join(name))).collect();
    let list = Path::new(&env::var("OUT_DIR").unwrap_or_default()).join("python_half.rs");
    fs::write(list, format!("[\n{entries}]"))
}
