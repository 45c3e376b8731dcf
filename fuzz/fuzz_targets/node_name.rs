//! Bits from outside either spell one node's name, and then exactly that one, or they are refused.
#![no_main]

use libfuzzer_sys::fuzz_target;
use types::NodeId;

fuzz_target!(|bytes: [u8; 4]| {
    let bits = u32::from_le_bytes(bytes);
    if let Some(node) = NodeId::from_bits(bits) {
        assert_eq!(node.to_bits(), bits, "{node} has two spellings");
    }
});
