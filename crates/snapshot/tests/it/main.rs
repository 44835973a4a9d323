//! Files of every format, broken and hostile ones too. One binary: each would link all of it.

mod formats;
mod hostile;
mod labels;
mod pickles;
mod tables;
mod truncated;
mod write;
