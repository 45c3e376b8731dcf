//! Decodes any 32 bits as a node's name. They are refused, or name a node that encodes to the same
//! bits.
#![no_main]

use libfuzzer_sys::fuzz_target;
use types::NodeId;

fuzz_target!(|bytes: [u8; 4]| {
    let bits = u32::from_le_bytes(bytes);
    if let Some(node) = NodeId::from_bits(bits) {
        assert_eq!(node.to_bits(), bits, "{node} has two encodings");
    }
});
