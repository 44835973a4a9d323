//! What is drawn, held against the history itself: every fixture, positions all over it.

use crate::documents::{FindingDocument, HolderTree, TypedJson};
use crate::picture::columns::{BAND_COLUMNS, Window, XAxis};
use crate::picture::tile::{FREE, GAP};
use crate::run::live::allocated;
use crate::run::view::DeviceView;
use crate::{Commands, Problem, Relation, Replayed, RunInput, Viewer, WhatIf};
use analysis::{Device, Finding, Key, RunModel};
use recording::Recording;
use serde_json::Value;
use snapshot::{Bytes, Counters};
use std::path::{Path, PathBuf};

struct NoCommands;

impl Commands for NoCommands {
    fn findings(&self, _: &RunModel<'_>, _: &[Finding]) -> (Vec<TypedJson<FindingDocument>>, String) {
        (Vec::new(), String::new())
    }

    fn what_if(&self, _: &Device<'_>, _: &WhatIf) -> Result<Replayed, Problem> {
        Err(Problem::new("nothing is replayed here"))
    }

    fn holders(&self, _: &RunInput, _: &[Device<'_>]) -> Option<TypedJson<HolderTree>> {
        None
    }
}

fn fixtures(folder: &str) -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(folder);
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| {
            let name = path.to_string_lossy();
            [".pickle.xz", ".json", ".json.xz", ".pt", ".pickle"].iter().any(|ending| name.ends_with(ending))
                && ![".truth.json", ".stats.json"].iter().any(|ending| name.ends_with(ending))
        })
        .collect();
    files.sort();
    files
}

fn open(path: &Path) -> Option<Viewer<'static>> {
    let snapshot = snapshot::open(path).ok()?;
    let name = path.display().to_string();
    Some(Viewer::new(
        vec![RunInput { name, snapshot, recording: Recording::default() }],
        Relation::Ranks,
        &NoCommands,
    ))
}

/// The numbers from 0 to `end` that are as good as any, always the same, with both ends.
fn some(end: usize, count: usize) -> impl Iterator<Item = usize> {
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let random = (0..count).map(move |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % (end + 1)
    });
    [0, end].into_iter().chain(random)
}

fn counters(view: &DeviceView<'_>, position: usize) -> Counters {
    let mut cursor = view.history().cursor(view.snapshot());
    cursor.seek(position);
    cursor.total()
}

/// A tile as the page reads it.
struct Decoded {
    first: usize,
    lowest: Vec<u64>,
    reserved: Vec<u64>,
    elapsed_us: Vec<u64>,
    position: Vec<usize>,
    /// Of each column: id, bytes, bytes in use.
    runs: Vec<Vec<(u32, u64, u64)>>,
}

fn decode(bytes: &[u8]) -> Decoded {
    let length = u32::from_le_bytes(bytes[..4].try_into().expect("four bytes")) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("a header");
    let number = |name: &str| header[name].as_u64().expect("a number") as usize;
    let (columns, entries) = (number("columns"), number("entries"));
    let mut at = 8 + length;
    let mut floats = |count: usize| -> Vec<u64> {
        let part = &bytes[at..at + 8 * count];
        at += 8 * count;
        part.chunks(8)
            .map(|chunk| f64::from_le_bytes(chunk.try_into().expect("eight bytes")) as u64)
            .collect()
    };
    let (lowest, reserved, elapsed_us) = (floats(columns), floats(columns), floats(columns));
    let size = floats(entries);
    let used = if header["used"] == true { floats(entries) } else { size.clone() };
    let mut ints = |count: usize| -> Vec<u32> {
        let part = &bytes[at..at + 4 * count];
        at += 4 * count;
        part.chunks(4).map(|chunk| u32::from_le_bytes(chunk.try_into().expect("four bytes"))).collect()
    };
    let (position, keep, count, tail) = (ints(columns), ints(columns), ints(columns), ints(columns));
    let id = ints(entries);
    let mut runs: Vec<Vec<(u32, u64, u64)>> = Vec::new();
    let mut next = 0;
    for column in 0..columns {
        let before = runs.last().cloned().unwrap_or_default();
        let mut all = before[..keep[column] as usize].to_vec();
        let end = next + count[column] as usize;
        all.extend((next..end).map(|entry| (id[entry], size[entry], used[entry])));
        all.extend_from_slice(&before[before.len() - tail[column] as usize..]);
        runs.push(all);
        next = end;
    }
    let position = position.into_iter().map(|position| position as usize).collect();
    Decoded { first: number("first"), lowest, reserved, elapsed_us, position, runs }
}

fn ask(viewer: &Viewer<'_>, question: &str) -> Vec<u8> {
    viewer.answer(question).unwrap_or_else(|problem| panic!("{question}: {}", problem.what)).bytes().to_vec()
}

fn ask_json(viewer: &Viewer<'_>, question: &str) -> Value {
    serde_json::from_slice(&ask(viewer, question)).expect("JSON")
}

fn for_each_view(folders: &[&str], mut check: impl FnMut(&Viewer<'_>, &DeviceView<'_>)) {
    let mut checked = 0;
    for file in folders.iter().flat_map(|folder| fixtures(folder)) {
        let Some(viewer) = open(&file) else { continue };
        for input in 0..viewer.inputs.names().len() {
            let loaded = viewer.inputs.get(input).expect("an input");
            for view in loaded.views() {
                check(&viewer, &view);
                checked += 1;
            }
        }
    }
    assert!(checked > 0, "no fixture was read");
}

#[test]
fn every_column_adds_up_to_what_was_allocated_at_its_moment() {
    for_each_view(&["zoo", "torch"], |viewer, view| {
        let run = view.id;
        for by in ["site", "category", "stack", "size", "block"] {
            for (level, smallest) in [(0, 0), (0, 20), (3, 22), (9, 0), (30, 26)] {
                let tile = decode(&ask(
                    viewer,
                    &format!("timeline?run={run}&by={by}&level={level}&smallest={smallest}&tile=0"),
                ));
                let mut cursor = view.history().cursor(view.snapshot());
                for (column, runs) in tile.runs.iter().enumerate() {
                    cursor.seek(tile.position[column]);
                    let drawn: u64 = runs.iter().map(|(_, bytes, _)| bytes).sum();
                    assert_eq!(drawn, cursor.total().allocated.0, "{} by {by}, column {column}", view.name);
                }
            }
        }
    });
}

#[test]
fn a_column_shows_the_highest_moment_of_those_that_it_covers() {
    for_each_view(&["zoo"], |viewer, view| {
        let mut allocated = Vec::new();
        let mut reserved = Vec::new();
        let mut cursor = view.history().cursor(view.snapshot());
        for position in 0..=view.history().len() {
            cursor.seek(position);
            allocated.push(cursor.total().allocated.0);
            reserved.push(cursor.total().reserved.0);
        }
        for (axis, x) in [(XAxis::Event, "event"), (XAxis::Time, "time")] {
            for (level, tile) in [(0, 0), (0, 1), (1, 0), (5, 0), (7, 0), (12, 0)] {
                let window = Window { axis, level, tile, width: BAND_COLUMNS };
                let columns = window.columns(view);
                let question = format!(
                    "timeline?run={}&by=category&level={level}&tile={tile}&smallest=0&x={x}",
                    view.id
                );
                let drawn = decode(&ask(viewer, &question));
                assert_eq!((drawn.position.len(), drawn.first), (columns.len(), window.first()));
                for (column, positions) in columns.into_iter().enumerate() {
                    let here = &allocated[positions.clone()];
                    let highest = here.iter().max().copied().expect("a column has a moment");
                    let first = positions.start
                        + here.iter().position(|&bytes| bytes == highest).expect("it is there");
                    assert_eq!(
                        drawn.position[column], first,
                        "{} {x} level {level} column {column}",
                        view.name
                    );
                    assert_eq!(Some(&drawn.lowest[column]), here.iter().min());
                    assert_eq!(drawn.elapsed_us[column], view.elapsed_us(first));
                    assert_eq!(Some(&drawn.reserved[column]), reserved[positions].iter().max());
                }
            }
        }
    });
}

#[test]
fn what_is_alive_is_what_the_history_says() {
    for_each_view(&["zoo", "torch"], |_, view| {
        for position in some(view.history().len(), 40) {
            let rows = allocated(view.history(), view.index(), position);
            let all = view.history().allocations.iter().enumerate();
            let expected: Vec<u32> = all
                .filter(|(_, allocation)| allocation.is_allocated_at(position))
                .map(|(row, _)| row as u32)
                .collect();
            assert_eq!(rows, expected, "{} at {position}", view.name);
        }
    });
}

#[test]
fn the_map_has_all_that_is_in_use_and_all_that_is_reserved() {
    for_each_view(&["zoo", "torch"], |viewer, view| {
        let space = view.space().length;
        let tile = decode(&ask(
            viewer,
            &format!("map?run={}&level=2&tile=0&low=0&high={space}&smallest=20", view.id),
        ));
        for (column, runs) in tile.runs.iter().enumerate().step_by(97) {
            let now = counters(view, tile.position[column]);
            let used: u64 =
                runs.iter().filter(|(id, ..)| *id < GAP || *id > FREE).map(|(.., used)| used).sum();
            assert_eq!(used, now.active.0, "{} column {column}", view.name);
        }
        for position in some(view.history().len(), 12) {
            let now = counters(view, position);
            let layout = ask_json(viewer, &format!("layout?run={}&at={position}", view.id));
            let segments = layout["segments"].as_array().expect("segments");
            let sum =
                |name: &str| segments.iter().map(|segment| segment[name].as_u64().unwrap_or(0)).sum::<u64>();
            assert_eq!(
                (sum("size"), sum("used")),
                (now.reserved.0, now.active.0),
                "{} at {position}",
                view.name
            );
            assert_eq!(layout["reserved"], now.reserved.0);
            assert_eq!(layout["allocated"], now.allocated.0);
            for segment in segments {
                let cells = segment["cells"].as_array().expect("cells");
                let bytes: u64 = cells.chunks(5).map(|cell| cell[1].as_u64().expect("bytes")).sum();
                assert_eq!(segment["size"], bytes);
            }
        }
    });
}

#[test]
fn flames_groups_and_tables_agree_with_the_report() {
    for_each_view(&["zoo"], |viewer, view| {
        let run = view.id;
        for at in some(view.history().len(), 4) {
            let live = view.model.live_at(at, Key::Site);
            let flame = ask_json(viewer, &format!("flame?run={run}&at={at}"));
            assert_eq!(flame["root"]["bytes"].as_f64(), Some(live.bytes.0 as f64), "{} at {at}", view.name);
            assert_eq!(flame["root"]["count"], live.count);
            let same = ask_json(viewer, &format!("flame?run={run}&at={at}&base_run={run}&base_at={at}"));
            assert_eq!(same["root"]["base"], same["root"]["bytes"]);
            let sites = ask_json(viewer, &format!("table?run={run}&of=sites&at={at}&sort=now&limit=1000"));
            let rows = sites["rows"].as_array().expect("rows");
            let now: u64 = rows.iter().map(|row| row[3].as_u64().expect("bytes")).sum();
            assert_eq!(Bytes(now), live.bytes);
            for (row, group) in rows.iter().zip(&live.groups) {
                assert_eq!((row[3].as_u64(), row[4].as_u64()), (Some(group.bytes.0), Some(group.count)));
            }
            let table = ask_json(viewer, &format!("table?run={run}&of=allocations&at={at}"));
            assert_eq!(table["total"], live.count);
        }
    });
}

#[test]
fn a_mean_over_one_position_is_what_is_there() {
    for_each_view(&["zoo"], |viewer, view| {
        let run = view.id;
        for at in some(view.history().len(), 6) {
            let moment = ask_json(viewer, &format!("flame?run={run}&at={at}"));
            let mean = ask_json(viewer, &format!("flame?run={run}&from={at}&to={at}"));
            assert_eq!(moment["root"]["bytes"], mean["root"]["bytes"], "{} at {at}", view.name);
        }
    });
}

#[test]
fn pages_of_a_table_are_those_of_the_whole() {
    for_each_view(&["zoo"], |viewer, view| {
        let whole = |sort: &str, desc: bool| {
            let question = format!("table?run={}&of=allocations&sort={sort}&desc={desc}&limit=1000", view.id);
            ask_json(viewer, &question)["rows"].as_array().expect("rows").clone()
        };
        for (sort, desc) in [("size", true), ("alloc", false), ("lifetime", true), ("site", false)] {
            let (all, mut paged) = (whole(sort, desc), Vec::new());
            for offset in (0..all.len()).step_by(70) {
                let question = format!(
                    "table?run={}&of=allocations&sort={sort}&desc={desc}&offset={offset}&limit=70",
                    view.id
                );
                paged.extend(ask_json(viewer, &question)["rows"].as_array().expect("rows").clone());
            }
            assert_eq!(paged[..all.len().min(paged.len())], all[..all.len().min(paged.len())]);
        }
    });
}

#[test]
fn no_question_about_any_file_goes_wrong() {
    for_each_view(&["bad", "formats", "torch"], |viewer, view| {
        let (run, end) = (view.id, view.history().len());
        let space = view.space().length;
        for at in [0, end / 2, end, usize::MAX] {
            for name in ["flame", "layout", "table", "group"] {
                for of in ["sites", "segments", "allocations"] {
                    let _ = viewer.answer(&format!("{name}?run={run}&at={at}&of={of}&id=0&by=site"));
                }
            }
            let _ = viewer.answer(&format!("flame?run={run}&from=0&to={at}"));
            let _ = viewer.answer(&format!("block?run={run}&row={at}"));
        }
        for level in [0, 4, 40, 63, 64, u32::MAX] {
            for (tile, smallest) in [(0, 0), (1, 20), (usize::MAX, u32::MAX)] {
                let place = format!("run={run}&level={level}&tile={tile}&smallest={smallest}");
                for x in ["event", "time"] {
                    for by in ["site", "block", "module"] {
                        let _ = viewer.answer(&format!("timeline?{place}&by={by}&x={x}"));
                    }
                    for high in [space, space / 3, u64::MAX, 0] {
                        let _ = viewer.answer(&format!("map?{place}&x={x}&low={}&high={high}", space / 4));
                    }
                }
            }
        }
        let _ = ask_json(viewer, "overview");
        let _ = ask_json(viewer, "ranks");
        let _ = ask_json(viewer, &format!("findings?run={run}"));
    });
}

#[test]
fn questions_that_make_no_sense_are_answered_in_words() {
    let viewer = open(&fixtures("zoo")[0]).expect("a fixture");
    for (question, words) in [
        ("", "no question ``"),
        ("nonsense?run=0", "no question `nonsense`"),
        ("block?row=0", "has no `run`"),
        ("timeline?run=99&level=0&tile=0&smallest=0", "no such run"),
        ("timeline?run=x", "`run` cannot be `x`"),
        ("timeline?run=0&level=-1&tile=0&smallest=0", "`level` cannot be `-1`"),
        ("timeline?run=0&level=0&tile=0&smallest=0&by=colour", "`colour` is not one of site"),
        ("block?run=0&row=99999999", "no such block"),
        ("group?run=0&by=site&id=9999&at=0", "no such group"),
        ("holders?input=0", "no heap file"),
        ("whatif?run=0", "nothing is replayed"),
    ] {
        let problem = viewer.answer(question).err().unwrap_or_else(|| panic!("{question} was answered"));
        assert!(problem.what.contains(words), "{question}: {}", problem.what);
    }
}
