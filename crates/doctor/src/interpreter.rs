//! The Python that programs would run with, and its torch.

use crate::Check;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Prints what [`Interpreter`] reads. CUDA is asked through NVML, so that no context takes memory.
const QUESTION: &str = r#"
import importlib.util, json, os, sys
found = {"version": sys.version.split()[0], "path": sys.executable}
found |= {"torch": None, "oomph": None, "error": None}
os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
try:
    import torch
    cuda, hip = torch.version.cuda, getattr(torch.version, "hip", None)
    found["torch"] = {"version": torch.__version__, "cuda": cuda, "hip": hip}
    found["torch"]["gpu"] = torch.cuda.is_available()
except ModuleNotFoundError as error:
    found["error"] = None if error.name == "torch" else str(error)
except BaseException as error:
    found["error"] = f"{type(error).__name__}: {error}"
if importlib.util.find_spec("oomph") is not None:
    try:
        import oomph
        found["oomph"] = str(getattr(oomph, "__version__", "unknown"))
    except BaseException as error:
        found["oomph"] = f"{type(error).__name__}: {error}"
print(json.dumps(found))
"#;

/// Lowest minor version of Python 3 that the recorder runs on.
const MIN_PYTHON: u32 = 10;

/// What an interpreter says about itself.
#[derive(Deserialize, Debug)]
pub(crate) struct Interpreter {
    version: String,
    path: PathBuf,
    pub(crate) torch: Option<Torch>,
    /// Version of the package `oomph`, if it is installed there.
    oomph: Option<String>,
    /// Why torch cannot be imported although it is installed.
    error: Option<String>,
}

#[derive(Deserialize, Debug)]
pub(crate) struct Torch {
    version: String,
    cuda: Option<String>,
    hip: Option<String>,
    gpu: bool,
}

impl Interpreter {
    pub(crate) fn ask(python: &Path) -> Result<Interpreter, String> {
        let output = Command::new(python)
            .args(["-c", QUESTION])
            .stdin(Stdio::null())
            .output()
            .map_err(|error| error.to_string())?;
        let text = String::from_utf8_lossy(&output.stdout);
        let answer = text.lines().rev().find_map(|line| serde_json::from_str(line).ok());
        let last =
            || String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("no answer").to_owned();
        answer.ok_or_else(last)
    }

    pub(crate) fn checks(&self, version: &str) -> Vec<Check> {
        vec![self.python(), self.torch(), self.package(version)]
    }

    fn python(&self) -> Check {
        let found = format!("{} at {}", self.version, self.path.to_string_lossy());
        let minor =
            self.version.strip_prefix("3.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
        match minor.is_some_and(|minor| minor >= MIN_PYTHON) {
            true => Check::ok("python", found),
            false => Check::failed("python", found, Some("the recorder needs Python 3.10 or later")),
        }
    }

    fn torch(&self) -> Check {
        let Some(torch) = &self.torch else {
            return match &self.error {
                Some(error) => Check::failed("torch", format!("cannot be imported: {error}"), None),
                None => Check::failed(
                    "torch",
                    "not installed for this Python",
                    Some("activate the environment of your program, or name its Python with --python"),
                ),
            };
        };
        let build = match (&torch.cuda, &torch.hip) {
            (_, Some(hip)) => format!("built for ROCm {hip}"),
            (Some(cuda), None) => format!("built for CUDA {cuda}"),
            (None, None) => "built for the CPU".to_owned(),
        };
        let found =
            format!("{}, {build}, {}", torch.version, if torch.gpu { "sees a GPU" } else { "sees no GPU" });
        match torch.cuda.is_some() {
            true => Check::ok("torch", found),
            false => Check::warning(
                "torch",
                found,
                Some("`oomph run` records; `oomph predict` needs a CUDA build of torch"),
            ),
        }
    }

    /// One copy is used per process: the installed one if it is the same version.
    fn package(&self, version: &str) -> Check {
        match &self.oomph {
            None => {
                Check::ok("package", "the recorder comes with this program; `import oomph` is not installed")
            }
            Some(installed) if installed == version => Check::ok("package", format!("oomph {installed}")),
            Some(installed) => Check::warning(
                "package",
                format!("oomph {installed} is installed for this Python, this program is {version}"),
                Some("install the same version in both places"),
            ),
        }
    }
}
