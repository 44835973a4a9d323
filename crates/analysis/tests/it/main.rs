//! Findings, steps, messages and alarms, on drawn traces and on recordings. One binary: each would link all of it.

mod alarm;
mod common;
mod findings;
mod host;
mod hostile;
mod layers;
mod leaks;
mod messages;
mod phases;
mod recordings;
mod repeated;
mod retries;
mod serving;
mod steps;
