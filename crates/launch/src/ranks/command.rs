//! Commands that start the ranks of a job.

use std::ffi::{OsStr, OsString};
use std::path::Path;

/// How a command starts ranks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LaunchForm {
    /// By a launcher in Python, whose processes the Python part starts itself.
    Launcher,
    /// By `mpirun` or `mpiexec`.
    Mpi,
    /// By `srun`.
    Slurm,
    /// By itself, or not at all.
    Program,
}

/// Launchers in Python, by the names of their commands and modules.
const COMMANDS: [&str; 3] = ["torchrun", "accelerate", "deepspeed"];
const MODULES: [&str; 5] = [
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
    "deepspeed.launcher.runner",
];

/// Options of `mpirun`, `mpiexec` and `srun` that take no value.
const FLAGS: [&str; 16] = [
    "--allow-run-as-root",
    "--oversubscribe",
    "--tag-output",
    "--bind-to-none",
    "--report-bindings",
    "--verbose",
    "--quiet",
    "--exclusive",
    "--label",
    "--unbuffered",
    "--kill-on-bad-exit",
    "-v",
    "-q",
    "-l",
    "-u",
    "-K",
];

/// Options of `mpirun` that take two values: `--mca NAME VALUE`.
const PAIRS: [&str; 3] = ["--mca", "-mca", "--gmca"];

impl LaunchForm {
    pub(super) fn of(command: &[OsString]) -> LaunchForm {
        let name = |word: &OsString| {
            Path::new(word).file_name().map(OsStr::to_string_lossy).unwrap_or_default().into_owned()
        };
        let Some(first) = command.first().map(name) else { return LaunchForm::Program };
        let module = command.iter().position(|word| word == "-m").and_then(|at| command.get(at + 1));
        let module = module.map(|module| module.to_string_lossy().into_owned()).unwrap_or_default();
        let is_python = first.starts_with("python") || first.starts_with("pypy");
        match first.as_str() {
            "mpirun" | "mpiexec" | "orterun" | "mpiexec.hydra" => LaunchForm::Mpi,
            "srun" => LaunchForm::Slurm,
            _ if COMMANDS.contains(&first.as_str()) => LaunchForm::Launcher,
            _ if MODULES.contains(&module.as_str()) => LaunchForm::Launcher,
            // A console script, by its path: `python /env/bin/torchrun`.
            _ if is_python
                && command.get(1).map(name).is_some_and(|name| COMMANDS.contains(&name.as_str())) =>
            {
                LaunchForm::Launcher
            }
            _ => LaunchForm::Program,
        }
    }

    pub(super) fn is_launcher(self) -> bool {
        self != LaunchForm::Program
    }

    /// Whose environment variables tell a process its rank, in the words of `JobPlan`.
    pub(super) fn style(self) -> &'static str {
        match self {
            LaunchForm::Mpi => "mpi",
            LaunchForm::Slurm => "slurm",
            LaunchForm::Launcher => "torchrun",
            LaunchForm::Program => "program",
        }
    }

    /// The command whose ranks the Python part starts: a launcher as it is, everything else by `torchrun`.
    pub(super) fn command(
        self,
        command: &[OsString],
        nodes: Option<u32>,
        gpus: u32,
        python: &Path,
    ) -> Vec<OsString> {
        let program = match self {
            LaunchForm::Launcher => return command.to_vec(),
            LaunchForm::Mpi | LaunchForm::Slurm => &command[program_at(command)..],
            LaunchForm::Program => command,
        };
        let asked_for = (self != LaunchForm::Program).then(|| processes(command)).flatten();
        let nodes = nodes.unwrap_or_else(|| asked_for.map_or(1, |processes| processes.div_ceil(gpus)));
        let local = asked_for.map_or(gpus, |processes| processes.div_ceil(nodes));
        let is_python = |word: &&OsString| {
            let name = Path::new(word).file_name().map(OsStr::to_string_lossy).unwrap_or_default();
            name.starts_with("python") || name.starts_with("pypy")
        };
        let own = program.first().filter(is_python).cloned();
        let mut launched: Vec<OsString> = vec![own.unwrap_or_else(|| python.into())];
        launched.extend(["-m", "torch.distributed.run"].map(OsString::from));
        launched.push(format!("--nnodes={nodes}").into());
        launched.push(format!("--nproc-per-node={local}").into());
        launched.push("--no-python".into());
        launched.extend(program.iter().cloned());
        launched
    }
}

/// Index of the program in a command of `mpirun` or `srun`.
fn program_at(command: &[OsString]) -> usize {
    let mut at = 1;
    while let Some(word) = command.get(at).map(|word| word.to_string_lossy()) {
        if word == "--" {
            return at + 1;
        }
        if !word.starts_with('-') {
            return at;
        }
        at += match word.as_ref() {
            _ if PAIRS.contains(&word.as_ref()) => 3,
            _ if FLAGS.contains(&word.as_ref()) || word.contains('=') => 1,
            // `-n8`
            _ if !word.starts_with("--")
                && word[1..].chars().skip(1).any(|letter| letter.is_ascii_digit()) =>
            {
                1
            }
            _ => 2,
        };
    }
    command.len()
}

/// Processes that a command of `mpirun` or `srun` asks for.
fn processes(command: &[OsString]) -> Option<u32> {
    const NAMES: [&str; 4] = ["-n", "-np", "--np", "--ntasks"];
    let words: Vec<String> =
        command[..program_at(command)].iter().map(|word| word.to_string_lossy().into_owned()).collect();
    words.iter().enumerate().find_map(|(index, word)| {
        if NAMES.contains(&word.as_str()) {
            return words.get(index + 1)?.parse().ok();
        }
        NAMES.iter().find_map(|name| word.strip_prefix(name)?.trim_start_matches('=').parse().ok())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    fn launched(text: &str, nodes: Option<u32>, gpus: u32) -> String {
        let command = words(text);
        crate::command_text(&LaunchForm::of(&command).command(&command, nodes, gpus, Path::new("python3.12")))
    }

    #[test]
    fn launchers_are_recognized() {
        for text in [
            "torchrun --nproc-per-node 8 train.py",
            "/env/bin/torchrun train.py",
            "python -m torch.distributed.run train.py",
            "python3.12 -m torch.distributed.launch train.py",
            "accelerate launch train.py",
            "python /env/bin/accelerate launch train.py",
            "deepspeed --num_gpus 8 train.py",
        ] {
            assert_eq!(LaunchForm::of(&words(text)), LaunchForm::Launcher, "{text}");
        }
        assert_eq!(LaunchForm::of(&words("mpirun -n 8 python train.py")), LaunchForm::Mpi);
        assert_eq!(LaunchForm::of(&words("srun python train.py")), LaunchForm::Slurm);
        assert_eq!(LaunchForm::of(&words("python train.py -m torchrun")), LaunchForm::Program);
    }

    #[test]
    fn other_commands_are_started_by_torchrun() {
        let by = |nodes: u32, local: u32| {
            format!("-m torch.distributed.run --nnodes={nodes} --nproc-per-node={local} --no-python")
        };
        assert_eq!(
            launched("python train.py --lr 1", Some(4), 8),
            format!("python {} python train.py --lr 1", by(4, 8))
        );
        let mpi = "mpirun -np 16 --mca btl tcp -x PATH --bind-to none python3 train.py";
        assert_eq!(launched(mpi, None, 8), format!("python3 {} python3 train.py", by(2, 8)));
        assert_eq!(
            launched("srun -n4 --label python t.py", None, 8),
            format!("python {} python t.py", by(1, 4))
        );
        assert_eq!(
            launched("srun --ntasks=16 python t.py", None, 8),
            format!("python {} python t.py", by(2, 8))
        );
    }
}
