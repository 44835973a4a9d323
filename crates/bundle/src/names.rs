//! Names replaced by numbers: the same name gets the same number everywhere in a bundle.

use rustc_hash::FxHashMap;
use snapshot::Renamer;

/// Packages whose names are public: their paths, functions and classes are kept.
const PUBLIC_PACKAGES: [&str; 24] = [
    "torch",
    "torchvision",
    "torchaudio",
    "torchao",
    "torchtune",
    "torchtitan",
    "triton",
    "transformers",
    "accelerate",
    "peft",
    "trl",
    "diffusers",
    "datasets",
    "lightning",
    "pytorch_lightning",
    "lightning_fabric",
    "deepspeed",
    "megatron",
    "bitsandbytes",
    "flash_attn",
    "xformers",
    "timm",
    "vllm",
    "oomph",
];

/// Words that PyTorch gives a meaning, in the names of functions, modules and tensors.
const PUBLIC_WORDS: [&str; 24] = [
    "forward",
    "backward",
    "step",
    "main",
    "weight",
    "bias",
    "input",
    "output",
    "running_mean",
    "running_var",
    "num_batches_tracked",
    "exp_avg",
    "exp_avg_sq",
    "max_exp_avg_sq",
    "momentum_buffer",
    "square_avg",
    "layers",
    "blocks",
    "embedding",
    "attn",
    "mlp",
    "norm",
    "lm_head",
    "loss",
];

/// Replaces names by numbers.
#[derive(Default)]
pub struct Names {
    known: FxHashMap<(Kind, String), usize>,
    counts: FxHashMap<Kind, usize>,
}

/// What a number stands for.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    Folder,
    File,
    Function,
    Name,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Folder => "folder",
            Kind::File => "file",
            Kind::Function => "function",
            Kind::Name => "name",
        }
    }
}

impl Names {
    fn numbered(&mut self, kind: Kind, text: &str) -> String {
        let number = *self.known.entry((kind, text.to_owned())).or_insert_with(|| {
            let count = self.counts.entry(kind).or_default();
            *count += 1;
            *count
        });
        format!("{}{number}", kind.word())
    }

    /// Returns a path with numbers in place of its folders and its file. A file of a public package or of
    /// Python's library keeps its path inside of that.
    pub fn path(&mut self, path: &str) -> String {
        let path = &*with_slashes(path);
        if let Some(public) = public_part(path) {
            return public;
        }
        if path.is_empty() || path.starts_with('<') || path == "??" {
            return path.to_owned();
        }
        let parts: Vec<&str> = path.split('/').collect();
        let (file, folders) = parts.split_last().expect("a split has a part");
        let mut renamed = String::new();
        for folder in folders {
            match folder.is_empty() || is_install_folder(folder) {
                true => renamed.push_str(folder),
                false => renamed.push_str(&self.numbered(Kind::Folder, folder)),
            }
            renamed.push('/');
        }
        let ending = file.rsplit_once('.').map_or("", |(_, ending)| ending);
        renamed.push_str(&self.numbered(Kind::File, file));
        if ["py", "ipynb", "cpp", "cu", "cc", "h", "so"].contains(&ending) {
            renamed.push('.');
            renamed.push_str(ending);
        }
        renamed
    }

    fn function(&mut self, name: &str) -> String {
        let is_special = name.is_empty()
            || name == "??"
            || name.starts_with('<') && name.ends_with('>')
            || name.starts_with("__") && name.ends_with("__");
        match is_special || PUBLIC_WORDS.contains(&name) {
            true => name.to_owned(),
            false => self.numbered(Kind::Function, name),
        }
    }

    /// Returns text with numbers in place of its names; digits, punctuation and public words stay.
    pub fn text_of(&mut self, text: &str) -> String {
        let mut renamed = String::new();
        let mut rest = text;
        while let Some(first) = rest.chars().next() {
            let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
            let end = rest.find(|letter| is_word(letter) != is_word(first)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let is_kept = !is_word(first)
                || word.bytes().all(|letter| letter.is_ascii_digit())
                || PUBLIC_WORDS.contains(&word);
            renamed.push_str(&if is_kept { word.to_owned() } else { self.numbered(Kind::Name, word) });
            rest = after;
        }
        renamed
    }
}

impl Renamer for Names {
    fn frame(&mut self, file: &str, function: &str) -> (String, String) {
        let is_public = public_part(&with_slashes(file)).is_some() || is_of_pytorch(function);
        let function = if is_public { function.to_owned() } else { self.function(function) };
        (self.path(file), function)
    }

    fn text(&mut self, text: &str) -> String {
        // PyTorch's own annotations, which steps are found by.
        match text.starts_with("ProfilerStep#") || text.starts_with("Optimizer.") || text == "N/A" {
            true => text.to_owned(),
            false => self.text_of(text),
        }
    }
}

/// A C++ symbol of PyTorch or CUDA.
fn is_of_pytorch(function: &str) -> bool {
    ["at::", "c10::", "torch::", "cuda", "cublas", "cudnn"].iter().any(|prefix| function.starts_with(prefix))
}

/// A folder that tells installed code from the user's own.
fn is_install_folder(folder: &str) -> bool {
    ["site-packages", "dist-packages", "lib"].contains(&folder) || folder.starts_with("python3.")
}

/// Returns a path of Windows with the separators of other systems.
fn with_slashes(path: &str) -> String {
    path.replace('\\', "/")
}

/// Returns the part of a path that says nothing about the user: an installed public package, or Python's
/// library.
fn public_part(path: &str) -> Option<String> {
    let mut start = 0;
    for part in path.split('/') {
        let rest = &path[start..];
        if PUBLIC_PACKAGES.contains(&part) && rest.len() > part.len() {
            return Some(format!("/site-packages/{rest}"));
        }
        if part.starts_with("python3.") && !rest.contains("-packages/") {
            return Some(format!("/lib/{rest}"));
        }
        start += part.len() + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_code_keeps_its_names_and_own_code_does_not() {
        let mut names = Names::default();
        let mut renamed = |file: &str, function: &str| {
            let (file, function) = names.frame(file, function);
            format!("{file} {function}")
        };
        for (file, function, expected) in [
            ("/home/ann/secret.py", "train_oracle", "/folder1/folder2/file1.py function1"),
            ("/home/ann/secret.py", "forward", "/folder1/folder2/file1.py forward"),
            ("/home/bob/secret.py", "<module>", "/folder1/folder3/file1.py <module>"),
            ("secret.ipynb", "train_oracle", "file2.ipynb function1"),
            (
                "/opt/lib/python3.12/site-packages/torch/optim/adam.py",
                "_init_group",
                "/site-packages/torch/optim/adam.py _init_group",
            ),
            ("/usr/lib/python3.12/threading.py", "run", "/lib/python3.12/threading.py run"),
            (
                "/usr/lib/python3.12/site-packages/acme/x.py",
                "run",
                "/folder4/lib/python3.12/site-packages/folder5/file3.py function2",
            ),
            (r"C:\py\Lib\site-packages\torch\_ops.py", "run", "/site-packages/torch/_ops.py run"),
            ("??", "at::empty_cuda", "?? at::empty_cuda"),
            ("??", "acme::kernel", "?? function3"),
            ("<frozen runpy>", "_run_code", "<frozen runpy> function4"),
            ("torch", "x", "file4 function5"),
        ] {
            assert_eq!(renamed(file, function), expected, "{file} {function}");
        }
    }

    #[test]
    fn text_keeps_numbers_and_public_words() {
        let mut names = Names::default();
        assert_eq!(names.text_of("forward Oracle.layers.3.gate"), "forward name1.layers.3.name2");
        assert_eq!(names.text_of("backward Oracle"), "backward name1");
        assert_eq!(names.text("ProfilerStep#3"), "ProfilerStep#3");
        assert_eq!(names.text("17"), "17");
    }
}
