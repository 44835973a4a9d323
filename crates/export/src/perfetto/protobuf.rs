//! The part of protocol buffers that a trace needs: varints, strings and nested messages.

/// A message under construction. A field of the same number that is written twice is repeated.
#[derive(Default)]
pub(super) struct ProtobufMessage(Vec<u8>);

/// Wire type of a varint.
const VARINT: u32 = 0;
/// Wire type of a length-delimited field.
const LENGTH: u32 = 2;

impl ProtobufMessage {
    pub(super) fn number(mut self, field: u32, value: u64) -> ProtobufMessage {
        self.tag(field, VARINT);
        self.varint(value);
        self
    }

    pub(super) fn text(self, field: u32, text: &str) -> ProtobufMessage {
        self.bytes(field, text.as_bytes())
    }

    pub(super) fn message(self, field: u32, message: &ProtobufMessage) -> ProtobufMessage {
        self.bytes(field, &message.0)
    }

    pub(super) fn encoded(&self) -> &[u8] {
        &self.0
    }

    fn bytes(mut self, field: u32, bytes: &[u8]) -> ProtobufMessage {
        self.tag(field, LENGTH);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
        self
    }

    fn tag(&mut self, field: u32, kind: u32) {
        self.varint(u64::from(field << 3 | kind));
    }

    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_encoded_as_the_specification_shows() {
        // The examples of protobuf.dev/programming-guides/encoding.
        assert_eq!(ProtobufMessage::default().number(1, 150).encoded(), [0x08, 0x96, 0x01]);
        assert_eq!(ProtobufMessage::default().text(2, "testing").encoded(), b"\x12\x07testing");
        let inner = ProtobufMessage::default().number(1, 150);
        assert_eq!(ProtobufMessage::default().message(3, &inner).encoded(), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(ProtobufMessage::default().number(1, u64::MAX).encoded().len(), 11);
    }
}
