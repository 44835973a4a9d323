//! The TypeScript types of the protocol, generated from the types of this crate.
//!
//! `make page-types` (or `UPDATE_PROTOCOL=1 cargo test --workspace --lib typescript`) writes them into
//! `web/src/protocol/answers.ts`.

use crate::picture::tile::TileHeader;
use crate::questions::PageQuestion;
use std::any::TypeId;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use ts_rs::{Config, TS, TypeVisitor};

const HEADER: &str = "// Generated from crates/viewer by `make page-types`. Do not edit.

";

/// Declares a type with its doc comment, each documented field on its own lines.
fn declaration<T: TS + ?Sized>(config: &Config) -> String {
    let docs = T::docs().unwrap_or_default().replace("/**\n * ", "/** ").replace("\n */", " */");
    let fields = T::decl(config).replace(" \n/**\n * ", "\n  /** ").replace("\n */\n", " */\n  ");
    format!("{docs}export {fields}\n\n")
}

/// Declarations of all types that were visited, by name: the order in which a derive lists the types that it
/// uses changes from build to build.
struct Declarations<'c> {
    config: &'c Config,
    visited: HashSet<TypeId>,
    by_name: BTreeMap<String, String>,
}

impl TypeVisitor for Declarations<'_> {
    fn visit<T: TS + 'static + ?Sized>(&mut self) {
        // A document contains documents.
        if !self.visited.insert(TypeId::of::<T>()) {
            return;
        }
        // Only types with a derived `TS` have a path; numbers, lists and documents have no declaration.
        if T::output_path().is_some() {
            self.by_name.insert(T::ident(self.config), declaration::<T>(self.config));
        }
        T::visit_dependencies(self);
        T::visit_generics(self);
    }
}

fn generated() -> String {
    let config = &Config::default().with_large_int("number");
    let mut types = Declarations { config, visited: HashSet::new(), by_name: BTreeMap::new() };
    PageQuestion::visit_types(&mut types);
    // A tile begins with its header.
    types.visit::<TileHeader>();
    let types: String = types.by_name.into_values().collect();
    let questions = PageQuestion::typescript(config).concat();
    format!(
        "{HEADER}{types}/** Every question of the page, with its query and its answer. */\n\
         export interface Questions {{\n{questions}}}\n"
    )
}

#[test]
fn the_types_of_the_page_are_those_of_this_crate() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../web/src/protocol/answers.ts");
    if std::env::var_os("UPDATE_PROTOCOL").is_some() {
        std::fs::write(&file, generated()).expect("web/src/protocol/answers.ts can be written");
    }
    let committed = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(committed == generated(), "web/src/protocol/answers.ts is out of date: run `make page-types`");
}
