//! The folders of a run: a private one with the Python part and the reports, and one for the recordings.

use crate::output::{self, OutputFolder};
use crate::scratch::{self, Scratch};
use crate::system;
use analysis::words::shown_path;
use std::io;
use std::path::{Path, PathBuf};

/// Files of the Python part: path inside `python/oomph`, and text.
pub(crate) const PYTHON_FILES: &[(&str, &str)] = &include!(concat!(env!("OUT_DIR"), "/python_files.rs"));
/// The file that Python itself imports at startup, from PYTHONPATH and not from a package.
const SITECUSTOMIZE: &str = "bootstrap/sitecustomize.py";

/// The folders of a run: a private one, and the one for its recordings.
pub struct RunFolder {
    pub(crate) scratch: Scratch,
    output: PathBuf,
    /// Whether the recordings outlive the run.
    pub(crate) is_kept: bool,
    /// Whether the folder for the recordings was created for this run.
    is_new: bool,
}

impl RunFolder {
    /// Creates the folders of a run. Fails if the recordings would overwrite other files, or if this system
    /// cannot run programs.
    pub fn new(output: OutputFolder) -> anyhow::Result<RunFolder> {
        let scratch = Scratch::new()?;
        let claimed = output::claim(output)?;
        let is_new = claimed.as_ref().is_some_and(|claimed| claimed.is_new);
        let is_kept = claimed.is_some();
        let output = claimed.map_or_else(|| scratch.at("out"), |claimed| claimed.folder);
        let folder = RunFolder { scratch, output, is_kept, is_new };
        folder.fill().map_err(|error| scratch::unwritable(&shown_path(folder.scratch.at("")), &error))?;
        Ok(folder)
    }

    /// Returns the absolute path of the folder for the recordings.
    pub fn output(&self) -> &Path {
        &self.output
    }

    /// Returns the path of the folder for the recordings as the user would type it here.
    pub fn shown(&self) -> String {
        output::shown(&self.output)
    }

    pub(crate) fn python_path(&self) -> PathBuf {
        self.scratch.at("site")
    }

    pub(crate) fn libraries(&self) -> PathBuf {
        self.scratch.at("lib")
    }

    pub(crate) fn notes(&self) -> PathBuf {
        self.scratch.at("notes")
    }

    pub(crate) fn problems(&self) -> PathBuf {
        self.scratch.at("problems")
    }

    pub(crate) fn rendezvous(&self) -> PathBuf {
        self.scratch.at("ranks")
    }

    /// Removes what the ranks of an earlier run have exchanged.
    pub(crate) fn clear_rendezvous(&self) -> io::Result<()> {
        let _ = std::fs::remove_dir_all(self.rendezvous());
        system::create_private_folder(&self.rendezvous())
    }

    fn fill(&self) -> io::Result<()> {
        for folder in [self.libraries(), self.rendezvous()] {
            system::create_private_folder(&folder)?;
        }
        if !self.is_kept {
            system::create_private_folder(&self.output)?;
        }
        let root = self.python_path();
        let package = root.join("oomph_child");
        for (name, text) in PYTHON_FILES {
            let path =
                if *name == SITECUSTOMIZE { root.join("sitecustomize.py") } else { package.join(name) };
            path.parent().map(system::create_private_folder).transpose()?;
            scratch::write(&path, text.as_bytes())?;
        }
        Ok(())
    }

    /// Returns why the folder for the recordings cannot be written to, if it cannot.
    pub(crate) fn write_problem(&self) -> Option<String> {
        /// More than a full file system still has in its own tables.
        static TEST_DATA: [u8; 1 << 16] = [0; 1 << 16];
        let file = self.output.join(format!(".oomph-trial-{}", std::process::id()));
        let written = scratch::write(&file, &TEST_DATA);
        let _ = std::fs::remove_file(&file);
        written.err().map(|error| format!("`{}` cannot be written: {error}", output::shown(&self.output)))
    }
}

impl Drop for RunFolder {
    fn drop(&mut self) {
        if self.is_kept && self.is_new {
            // Succeeds only for an empty folder: nothing was recorded.
            let _ = std::fs::remove_dir(&self.output);
        }
    }
}
