//! Description of the card, which the real library accepts in place of a device.
//!
//! Releases before 9.8 do not accept it. With these, every graph has one engine, whose plan needs no
//! workspace.

use super::backend::{attribute, kind, value};
use super::emulated_engine::EmulatedEngine;
use super::{Descriptor, SUCCESS, real};
use crate::card::card;
use crate::{device, notes};
use std::sync::OnceLock;

/// The card in cuDNN's own serialization of device properties. Literal numbers are the same on every card
/// that cuDNN 9 supports.
fn card_json() -> String {
    let card = card();
    format!(
        concat!(
            r#"{{"maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"regsPerBlock":65536,"#,
            r#""multiProcessorCount":{},"warpSize":32,"maxSharedMemoryPerBlock":49152,"#,
            r#""maxSharedMemoryPerBlockOptin":{},"reservedSharedMemoryPerBlock":{},"#,
            r#""maxRegistersPerSM":65536,"#,
            r#""maxCtasPerSM":{},"maxThreadsPerBlock":1024,"maxThreadsPerSM":{},"pciDeviceId":0,"#,
            r#""isTccDriver":0,"#,
            r#""supportCoopLaunch":1,"totalGlobalMem":{},"smClockRateKHz":{},"memClockRateKHz":{},"#,
            r#""l2CacheSize":{},"cudaDeviceId":0,"deviceVer":{},"driverVer":{},"deviceName":"{}"}}"#
        ),
        card.multiprocessors,
        card.shared_per_block_optin,
        device::reserved_shared(),
        card.blocks_per_multiprocessor,
        card.threads_per_multiprocessor,
        card.memory,
        card.clock_khz,
        card.memory_clock_khz,
        card.l2,
        card.major * 100 + card.minor * 10,
        device::runtime_version(),
        card.name,
    )
}

/// Descriptor of the card, created once.
fn card_descriptor() -> Option<Descriptor> {
    static DESCRIPTOR: OnceLock<Option<usize>> = OnceLock::new();
    let descriptor = *DESCRIPTOR.get_or_init(|| {
        let card_json = card_json();
        let mut descriptor: Descriptor = std::ptr::null_mut();
        let made = unsafe {
            real::cudnnBackendCreateDescriptor(kind::DEVICE_PROPERTIES, &mut descriptor) == SUCCESS
                && real::cudnnBackendSetAttribute(
                    descriptor,
                    attribute::DEVICE_PROPERTIES_JSON,
                    value::CHARACTER,
                    card_json.len() as i64,
                    card_json.as_ptr().cast(),
                ) == SUCCESS
                && real::cudnnBackendFinalize(descriptor) == SUCCESS
        };
        if !made {
            notes::print("cuDNN does not accept the description of the card; convolutions will fail");
        }
        made.then_some(descriptor as usize)
    });
    descriptor.map(|descriptor| descriptor as Descriptor)
}

/// Tells a descriptor that is about to be finalized which card to plan for. If that fails, finalizing fails
/// too, and the caller sees the error there.
pub(super) fn set_card(descriptor: Descriptor, name: i32) {
    if let Some(card) = card_descriptor() {
        unsafe {
            real::cudnnBackendSetAttribute(descriptor, name, value::DESCRIPTOR, 1, (&raw const card).cast())
        };
    }
}

/// Replacement for a descriptor whose finalization needs a device, if the library requires one.
pub(super) fn replacement_for_planning(descriptor_kind: i32) -> Option<EmulatedEngine> {
    const FIRST_DEVICELESS_RELEASE: usize = 9_08_00;
    const PLANNING: [i32; 5] = [
        kind::OPERATION_GRAPH,
        kind::ENGINE,
        kind::ENGINE_CONFIGURATION,
        kind::ENGINE_HEURISTICS,
        kind::EXECUTION_PLAN,
    ];
    if !PLANNING.contains(&descriptor_kind) || real::version() >= FIRST_DEVICELESS_RELEASE {
        return None;
    }
    Some(EmulatedEngine {
        engine: 0,
        workspace: 0,
        uses_tensor_cores: false,
        model: "cuDNN before 9.8: convolution workspaces counted as 0",
    })
}
