//! Decision trees that were fitted to answers of a real card, as text: a question `FEATURE LIMIT`, followed
//! by the answer for values up to the limit and the answer for others; or a number, which is the answer.

use std::str::Lines;

/// A question about a convolution, or the answer.
pub(super) enum DecisionTree {
    Question { feature: usize, limit: i64, up_to: Box<DecisionTree>, above: Box<DecisionTree> },
    Answer(i64),
}

impl DecisionTree {
    /// Reads trees, each under a heading.
    pub(super) fn read_all<const TREES: usize>(text: &str, features: &[&str]) -> [DecisionTree; TREES] {
        let mut lines = text.lines();
        std::array::from_fn(|_| {
            lines.next();
            DecisionTree::read(&mut lines, features)
        })
    }

    fn read(lines: &mut Lines, features: &[&str]) -> DecisionTree {
        let line = lines.next().unwrap_or_default();
        let question = line.split_once(' ').and_then(|(name, limit)| {
            let feature = features.iter().position(|feature| *feature == name)?;
            Some((feature, limit.parse().ok()?))
        });
        match question {
            Some((feature, limit)) => {
                let up_to = Box::new(DecisionTree::read(lines, features));
                let above = Box::new(DecisionTree::read(lines, features));
                DecisionTree::Question { feature, limit, up_to, above }
            }
            None => DecisionTree::Answer(line.parse().unwrap_or_default()),
        }
    }

    /// Returns the answer for these values of the features.
    pub(super) fn answer(&self, values: &[i64]) -> i64 {
        match self {
            DecisionTree::Answer(answer) => *answer,
            DecisionTree::Question { feature, limit, up_to, above } => {
                let next = if values[*feature] <= *limit { up_to } else { above };
                next.answer(values)
            }
        }
    }
}

/// Headings of trees for the three passes.
#[cfg(test)]
pub(super) const PASSES: [&str; 3] = ["forward", "input", "filter"];

/// Fails if a text is not complete trees with these headings, features and answers.
#[cfg(test)]
pub(super) fn check(text: &str, headings: &[&str], features: &[&str], is_answer: impl Fn(i64) -> bool) {
    let mut lines = text.lines();
    for name in headings {
        assert_eq!(lines.next(), Some(*name));
        DecisionTree::read(&mut lines, features);
    }
    assert_eq!(lines.next(), None);
    let is_known = |line: &str| match line.split_once(' ') {
        Some((feature, limit)) => features.contains(&feature) && limit.parse::<i64>().is_ok(),
        None => headings.contains(&line) || line.parse().is_ok_and(&is_answer),
    };
    assert!(text.lines().all(is_known));
}
