//! Graphs of objects, and who holds what. One binary: each would link all of it.

mod graphs;
mod holders;
