//! Names of files that are the same on every machine: a baseline is written on one and compared on another,
//! and an annotation has to find its line in the repository.

use analysis::{SiteName, in_package};
use std::path::{Component, Path, PathBuf};

/// Folder that names are relative to: the root of the git repository around the current folder, or the
/// current folder itself.
pub struct Checkout {
    root: PathBuf,
    folder: PathBuf,
}

impl Checkout {
    /// Finds the repository around the current folder.
    pub fn here() -> Checkout {
        let folder = std::env::current_dir().unwrap_or_default();
        let root = folder.ancestors().find(|above| above.join(".git").exists()).unwrap_or(&folder).to_owned();
        Checkout { root, folder }
    }

    /// Returns a site with the portable name of its file.
    pub fn portable(&self, site: SiteName) -> SiteName {
        SiteName { file: self.name(&site.file), ..site }
    }

    /// Returns the portable name of a file: `src/train.py` for `/home/user/project/src/train.py`,
    /// `torch/nn/modules/linear.py` for a file of a library.
    fn name(&self, file: &str) -> String {
        let file = file.replace('\\', "/");
        if let Some(inside) = in_package(&file) {
            return inside.to_owned();
        }
        let path = self.folder.join(&file);
        if let Ok(inside) = path.strip_prefix(&self.root)
            && path.is_file()
        {
            return inside.to_string_lossy().replace('\\', "/");
        }
        // Recorded in another checkout: the longest end of its path that exists here, otherwise its name.
        let parts: Vec<&str> = path.components().filter_map(normal).collect();
        let ends = (0..parts.len()).map(|start| parts[start..].join("/"));
        ends.into_iter()
            .find(|end| self.root.join(end).is_file())
            .unwrap_or_else(|| parts.last().map_or(file.clone(), |&name| name.to_owned()))
    }
}

fn normal(part: Component<'_>) -> Option<&str> {
    match part {
        Component::Normal(name) => Path::new(name).to_str(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_same_name_on_every_machine() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().to_owned();
        std::fs::create_dir_all(root.join("src/model")).expect("folders");
        std::fs::write(root.join("src/model/net.py"), "").expect("a file");
        let checkout = Checkout { folder: root.join("src"), root: root.clone() };
        let here = root.join("src/model/net.py");
        for (recorded, expected) in [
            (here.to_str().expect("a path"), "src/model/net.py"),
            ("model/net.py", "src/model/net.py"),
            ("/home/other/project/src/model/net.py", "src/model/net.py"),
            (r"C:\work\src\model\net.py", "src/model/net.py"),
            ("/home/other/gone.py", "gone.py"),
            ("/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", "torch/nn/modules/linear.py"),
        ] {
            assert_eq!(checkout.name(recorded), expected, "{recorded}");
        }
        let typed = Checkout { folder: "/w".into(), root: "/w".into() };
        assert_eq!(typed.name("<stdin>"), "<stdin>");
    }
}
