//! Messages that have one explanation.

use super::{Explanation, Message};

/// Groups messages of one kind and cause: the first is shown, since the others often follow
/// from it, or the first with numbers.
pub fn groups(messages: &[Message]) -> Vec<(Explanation, Vec<&Message>)> {
    let mut groups: Vec<(Explanation, Vec<&Message>)> = Vec::new();
    for message in messages {
        let verdict = message.explain();
        let same = groups.iter_mut().find(|(known, group)| {
            known.cause == verdict.cause
                && group[0].kind == message.kind
                && group[0].backend == message.backend
        });
        match same {
            // What has numbers says more.
            Some((known, group)) if group[0].numbers.is_empty() && !message.numbers.is_empty() => {
                *known = verdict;
                group.insert(0, message);
            }
            Some((_, group)) => group.push(message),
            None => groups.push((verdict, vec![message])),
        }
    }
    groups
}
