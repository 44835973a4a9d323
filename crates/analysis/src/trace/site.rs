//! Which line of the user's own code an allocation comes from.

use snapshot::{FrameId, Snapshot, StackId};

/// Origin of an allocation, according to its stack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Site {
    /// The innermost frame of the user's own code.
    User(FrameId),
    /// Only library code is on the stack; this is its innermost Python frame.
    Library(FrameId),
    /// Allocated inside the `backward()` that this frame called; the block itself has no Python stack.
    Backward(FrameId),
    /// Allocated inside `backward()`, for a module whose forward pass runs at this frame.
    BackwardOf(FrameId),
    /// The stack has no Python at all (C++ frames only).
    Native,
    /// No stack was recorded. Under `stacks="python"` that is what happens inside `backward()`.
    Unknown,
    /// Allocated before the history begins, and no stack was kept.
    Before,
}

impl Site {
    /// Returns the frame that it names, if there is one.
    pub fn frame(self) -> Option<FrameId> {
        match self {
            Site::User(frame) | Site::Library(frame) | Site::Backward(frame) | Site::BackwardOf(frame) => {
                Some(frame)
            }
            Site::Native | Site::Unknown | Site::Before => None,
        }
    }
}

/// The site of every stack of a snapshot, and whose code each frame is.
pub struct Sites {
    of_stack: Vec<Site>,
    code: Vec<Code>,
}

impl Sites {
    /// Finds the site of every stack; there are few stacks, however many events.
    pub fn new(snapshot: &Snapshot) -> Sites {
        let code: Vec<Code> = snapshot
            .stacks
            .all_frames()
            .iter()
            .map(|frame| whose(snapshot.strings.get(frame.file)))
            .collect();
        let site = |stack: u32| {
            let frames = snapshot.stacks.frames(StackId(stack));
            let innermost =
                |wanted: Code| frames.iter().copied().find(|frame| code[frame.0 as usize] == wanted);
            match (innermost(Code::User), innermost(Code::Library)) {
                (Some(frame), _) => Site::User(frame),
                (None, Some(frame)) => Site::Library(frame),
                (None, None) if frames.is_empty() => Site::Unknown,
                (None, None) => Site::Native,
            }
        };
        Sites { of_stack: (0..snapshot.stacks.len() as u32).map(site).collect(), code }
    }

    /// Whether a frame is the user's own code.
    pub fn is_user(&self, frame: FrameId) -> bool {
        self.code[frame.0 as usize] == Code::User
    }

    /// Whether a frame is neither the user's Python nor a library's.
    pub fn is_native(&self, frame: FrameId) -> bool {
        self.code[frame.0 as usize] == Code::Native
    }

    /// The site of one stack.
    pub fn of(&self, stack: StackId) -> Site {
        self.of_stack[stack.0 as usize]
    }
}

/// Whose code a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Code {
    User,
    Library,
    Native,
}

/// Whether a file is the user's own code.
pub fn is_user_file(file: &str) -> bool {
    whose(file) == Code::User
}

/// The part of a path that begins at an installed package: `torch/nn/modules/linear.py`.
pub fn in_package(file: &str) -> Option<&str> {
    INSTALLED.iter().find_map(|folder| file.rsplit_once(folder)).map(|(_, inside)| inside)
}

/// Folders that packages are installed in.
const INSTALLED: [&str; 3] = ["/site-packages/", "/dist-packages/", r"\site-packages\"];

/// Packages of torch and of ours, for installations outside `site-packages` (a source checkout, a zip, a
/// container).
const TORCH: [&str; 13] = [
    "/torchinductor", // what Inductor has generated
    "/torch/nn/",
    "/torch/optim/",
    "/torch/autograd/",
    "/torch/utils/",
    "/torch/cuda/",
    "/torch/_",
    "/torch/distributed/",
    "/torch/amp/",
    "/torch/fx/",
    "/torch/functional.py",
    "/oomph/recording/", // the recorder stands between a module and what calls it
    "/oomph/heap/",
];

fn whose(file: &str) -> Code {
    let file = file.replace('\\', "/");
    let name = file.rsplit('/').next().unwrap_or("");
    let has = |part: &str| file.contains(part);
    if file.is_empty() || file == "??" {
        return Code::Native;
    }
    let is_recorder = has("/oomph_child/");
    if is_recorder || in_package(&file).is_some() || is_standard_library(&file) {
        return Code::Library;
    }
    if let Some(made_up) = file.strip_prefix('<') {
        // What is typed at a prompt is the user's; what torch.fx or the import system makes up is not.
        let typed = ["stdin", "string", "ipython", "input"].iter().any(|start| made_up.starts_with(start));
        return if typed { Code::User } else { Code::Library };
    }
    if TORCH.iter().any(|part| has(part)) {
        return Code::Library;
    }
    match name.rsplit_once('.') {
        Some((_, "py" | "ipynb" | "pyx")) => Code::User,
        // A script without an ending; the launchers in a `bin` folder are not the user's.
        None if has("/bin/") => Code::Library,
        None => Code::User,
        Some(_) => Code::Native,
    }
}

/// `…/lib/python3.12/threading.py`, `…/Python311/Lib/threading.py`
fn is_standard_library(file: &str) -> bool {
    let unix = ["/lib/python3", "/lib64/python3", "/lib/pypy3"].iter().any(|part| file.contains(part));
    let windows = file.split_once("/Lib/").is_some_and(|(before, _)| {
        before.rsplit('/').next().is_some_and(|folder| folder.to_ascii_lowercase().starts_with("python"))
    });
    unix || windows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_code_is_distinguished_from_library_code() {
        for (file, expected) in [
            ("/home/user/project/train.py", Code::User),
            ("train.py", Code::User),
            ("/tmp/ipykernel_77/3054.py", Code::User),
            ("<stdin>", Code::User),
            ("<ipython-input-3-abc>", Code::User),
            ("/workspace/run", Code::User),
            (r"C:\work\train.py", Code::User),
            ("/home/user/lib/train.py", Code::User),
            ("/home/user/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", Code::Library),
            ("/usr/lib/python3/dist-packages/numpy/core.py", Code::Library),
            ("/root/.pyenv/versions/3.11.7/lib/python3.11/threading.py", Code::Library),
            (r"C:\Python311\Lib\threading.py", Code::Library),
            ("/opt/pytorch/torch/nn/functional.py", Code::Library),
            ("/home/user/venv/bin/torchrun", Code::Library),
            ("/tmp/oomph-x/oomph_child/recorder.py", Code::Library),
            ("/home/user/oomph/python/oomph/recording/module_tracker.py", Code::Library),
            ("/tmp/torchinductor_user/ab/cabcdef.py", Code::Library),
            ("<frozen runpy>", Code::Library),
            ("<eval_with_key>.0", Code::Library),
            ("??", Code::Native),
            ("", Code::Native),
            ("CUDACachingAllocator.cpp", Code::Native),
        ] {
            assert_eq!(whose(file), expected, "{file}");
        }
    }
}
