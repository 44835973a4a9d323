//! Tiles that were drawn lately.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

/// Tiles by the address that asked for them; the oldest are dropped first.
#[derive(Default)]
pub(crate) struct TileCache(Mutex<Tiles>);

#[derive(Default)]
struct Tiles {
    /// Oldest first.
    by_address: VecDeque<(String, Arc<Vec<u8>>)>,
    bytes: usize,
}

/// Bytes of all cached tiles together.
const MAX_CACHE_BYTES: usize = 32 << 20;

impl TileCache {
    pub(crate) fn get(&self, address: &str) -> Option<Arc<Vec<u8>>> {
        let tiles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tiles.by_address.iter().find(|(known, _)| known == address).map(|(_, tile)| tile.clone())
    }

    pub(crate) fn put(&self, address: &str, tile: Arc<Vec<u8>>) {
        let mut tiles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tiles.bytes += tile.len();
        tiles.by_address.push_back((address.to_owned(), tile));
        while tiles.bytes > MAX_CACHE_BYTES {
            let Some((_, oldest)) = tiles.by_address.pop_front() else { break };
            tiles.bytes -= oldest.len();
        }
    }
}
