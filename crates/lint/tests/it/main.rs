//! Rules and fixes, on examples and on whole programs. One binary: each would link all of it.

mod fixes;
mod judgement;
mod programs;
mod rules;
