//! Rules and fixes, on examples and on whole programs. One binary: each would link all of it.

mod asked;
mod fixes;
mod judgement;
mod programs;
mod rules;
