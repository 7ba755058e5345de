//! Which datatypes can tensors have?

/// The datatype of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum DataType {
    /// One byte, 0 or 1.
    Bool = 1,
    /// An unsigned integer of 8 bits.
    Uint8 = 2,
    /// An unsigned integer of 16 bits.
    Uint16 = 3,
    /// An unsigned integer of 32 bits.
    Uint32 = 4,
    /// An unsigned integer of 64 bits.
    Uint64 = 5,
    /// A signed integer of 8 bits.
    Int8 = 6,
    /// A signed integer of 16 bits.
    Int16 = 7,
    /// A signed integer of 32 bits.
    Int32 = 8,
    /// A signed integer of 64 bits.
    Int64 = 9,
    /// IEEE 754 half precision.
    Fp16 = 10,
    /// IEEE 754 single precision.
    Fp32 = 11,
    /// IEEE 754 double precision.
    Fp64 = 12,
    /// Strings. Each follows its length, as four bytes in little-endian order.
    Bytes = 13,
    /// The upper half of a single-precision number (bfloat16).
    Bf16 = 14,
}

impl DataType {
    /// All of them.
    pub const ALL: [DataType; 14] = [
        DataType::Bool,
        DataType::Uint8,
        DataType::Uint16,
        DataType::Uint32,
        DataType::Uint64,
        DataType::Int8,
        DataType::Int16,
        DataType::Int32,
        DataType::Int64,
        DataType::Fp16,
        DataType::Fp32,
        DataType::Fp64,
        DataType::Bytes,
        DataType::Bf16,
    ];

    /// Bytes of one element; `None` for strings.
    pub fn size(self) -> Option<usize> {
        match self {
            DataType::Bool | DataType::Uint8 | DataType::Int8 => Some(1),
            DataType::Uint16 | DataType::Int16 | DataType::Fp16 | DataType::Bf16 => Some(2),
            DataType::Uint32 | DataType::Int32 | DataType::Fp32 => Some(4),
            DataType::Uint64 | DataType::Int64 | DataType::Fp64 => Some(8),
            DataType::Bytes => None,
        }
    }

    /// Its name in requests.
    pub fn name(self) -> &'static str {
        match self {
            DataType::Bool => "BOOL",
            DataType::Uint8 => "UINT8",
            DataType::Uint16 => "UINT16",
            DataType::Uint32 => "UINT32",
            DataType::Uint64 => "UINT64",
            DataType::Int8 => "INT8",
            DataType::Int16 => "INT16",
            DataType::Int32 => "INT32",
            DataType::Int64 => "INT64",
            DataType::Fp16 => "FP16",
            DataType::Fp32 => "FP32",
            DataType::Fp64 => "FP64",
            DataType::Bytes => "BYTES",
            DataType::Bf16 => "BF16",
        }
    }

    /// Its name in configurations.
    pub fn config_name(self) -> String {
        if self == DataType::Bytes { "TYPE_STRING".to_owned() } else { format!("TYPE_{}", self.name()) }
    }

    /// The datatype of that name in configurations.
    pub fn of_config(name: &str) -> Option<DataType> {
        DataType::ALL.into_iter().find(|known| known.config_name() == name)
    }

    /// The datatype of that number in the interface.
    pub(crate) fn of_number(number: u32) -> Option<DataType> {
        DataType::ALL.into_iter().find(|known| *known as u32 == number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_interface_and_names_are_read_back() {
        for (index, datatype) in DataType::ALL.into_iter().enumerate() {
            assert_eq!(datatype as usize, index + 1);
            assert_eq!(DataType::of_number(index as u32 + 1), Some(datatype));
            assert_eq!(DataType::of_config(&datatype.config_name()), Some(datatype));
        }
        assert_eq!(
            (DataType::of_number(0), DataType::of_number(15), DataType::of_config("TYPE_BYTES")),
            (None, None, None)
        );
    }
}
