//! What the recorded events say by themselves: lines of code, loops and steps, `backward()`, modules. Nothing
//! here needs the rebuilt history, so it runs while that is being rebuilt.

pub(crate) mod backward;
pub(crate) mod counted;
pub(crate) mod loops;
pub(crate) mod modules;
pub(crate) mod order;
pub(crate) mod repeated;
pub(crate) mod roles;
pub(crate) mod site;
pub(crate) mod steps;
