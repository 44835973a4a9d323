//! Which blocks of a model to checkpoint: those that keep most for what they cost to compute again.

use recording::{ObservedBlock, ObservedProgram};

/// Returns the indexes of the blocks, the best to checkpoint first.
///
/// Among equals the first block of the model comes first: when the backward pass computes it again, the
/// activations of the blocks after it are gone.
pub(crate) fn by_worth(blocks: &[ObservedBlock]) -> Vec<usize> {
    let worth = |block: &ObservedBlock| block.kept.max(0) as f64 / block.flops.max(1) as f64;
    let mut order: Vec<usize> = (0..blocks.len()).collect();
    order.sort_by(|&a, &b| worth(&blocks[b]).total_cmp(&worth(&blocks[a])).then(a.cmp(&b)));
    order
}

/// Returns the technique that checkpoints these blocks: `checkpoint:0-3.7`.
pub(crate) fn technique(chosen: &[usize]) -> String {
    let mut sorted = chosen.to_vec();
    sorted.sort_unstable();
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for index in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == index => *last = index,
            _ => ranges.push((index, index)),
        }
    }
    let words = ranges.iter().map(|&(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    format!("checkpoint:{}", words.collect::<Vec<_>>().join("."))
}

/// Returns the indexes in the setting of such a technique; all blocks without a setting.
pub(crate) fn indexes(setting: &str, count: usize) -> Vec<usize> {
    if setting.is_empty() {
        return (0..count).collect();
    }
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    setting.split('.').filter_map(range).flatten().filter(|&index| index < count).collect()
}

/// Returns the share of the forward pass that the chosen blocks compute.
pub(crate) fn recomputed_share(program: &ObservedProgram, setting: &str) -> f64 {
    let chosen = indexes(setting, program.blocks.len());
    if program.flops == 0 {
        return if program.blocks.is_empty() {
            1.0
        } else {
            chosen.len() as f64 / program.blocks.len() as f64
        };
    }
    let flops: i64 = chosen.iter().map(|&index| program.blocks[index].flops.max(0)).sum();
    (flops as f64 / program.flops as f64).min(1.0)
}

/// Returns Python expressions for these blocks of a model: `model.layers[:7]`, `model.up`.
///
/// Slices are sequences of blocks; the second part of each pair says which they are.
pub(crate) fn expressions(model: &str, blocks: &[ObservedBlock], chosen: &[usize]) -> Vec<(String, bool)> {
    let mut sorted = chosen.to_vec();
    sorted.sort_unstable();
    let mut groups: Vec<(String, usize, usize)> = Vec::new();
    let mut found = Vec::new();
    let flush = |groups: &mut Vec<(String, usize, usize)>, found: &mut Vec<(String, bool)>| {
        for (list, first, last) in groups.drain(..) {
            let start = if first == 0 { String::new() } else { first.to_string() };
            found.push((format!("{list}[{start}:{}]", last + 1), true));
        }
    };
    for index in sorted {
        let (list, item) = match blocks[index].name.rsplit_once('.') {
            Some((list, item)) => (member(model, list), item),
            None => (model.to_owned(), blocks[index].name.as_str()),
        };
        match item.parse::<usize>() {
            Ok(item) => match groups.last_mut() {
                Some((of, _, last)) if *of == list && *last + 1 == item => *last = item,
                _ => groups.push((list, item, item)),
            },
            Err(_) => {
                flush(&mut groups, &mut found);
                found.push((format!("{list}.{item}"), false));
            }
        }
    }
    flush(&mut groups, &mut found);
    found
}

/// Returns the expression of a module by its path: `model.layers[2].mlp`.
fn member(model: &str, path: &str) -> String {
    path.split('.').fold(model.to_owned(), |outer, part| match part.parse::<usize>() {
        Ok(index) => format!("{outer}[{index}]"),
        Err(_) => format!("{outer}.{part}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(name: &str, kept: i64, flops: i64) -> ObservedBlock {
        ObservedBlock { name: name.to_owned(), kept, flops, ..ObservedBlock::default() }
    }

    #[test]
    fn blocks_that_keep_much_and_compute_little_come_first() {
        let blocks = [block("a", 10, 10), block("b", 30, 10), block("c", 30, 10), block("d", 40, 100)];
        assert_eq!(by_worth(&blocks), [1, 2, 0, 3]);
    }

    #[test]
    fn settings_are_ranges() {
        assert_eq!(technique(&[3, 0, 1, 2, 7]), "checkpoint:0-3.7");
        assert_eq!(indexes("0-3.7", 12), [0, 1, 2, 3, 7]);
        assert_eq!(indexes("", 2), [0, 1]);
    }

    #[test]
    fn blocks_are_written_as_python() {
        let blocks: Vec<_> = ["h.0", "h.1", "h.2", "up", "stages.1.blocks.0", "3"]
            .iter()
            .map(|name| block(name, 1, 1))
            .collect();
        let written = |chosen: &[usize]| {
            expressions("model", &blocks, chosen).into_iter().map(|(text, _)| text).collect::<Vec<_>>()
        };
        assert_eq!(written(&[0, 1]), ["model.h[:2]"]);
        assert_eq!(
            written(&[1, 2, 3, 4, 5]),
            ["model.h[1:3]", "model.up", "model.stages[1].blocks[:1]", "model[3:4]"]
        );
    }

    #[test]
    fn the_share_that_is_computed_twice_is_that_of_the_blocks() {
        let blocks = vec![block("a", 1, 30), block("b", 1, 30)];
        let program = ObservedProgram { blocks, flops: 80, ..ObservedProgram::default() };
        assert_eq!(recomputed_share(&program, ""), 0.75);
        assert_eq!(recomputed_share(&program, "1"), 0.375);
    }
}
