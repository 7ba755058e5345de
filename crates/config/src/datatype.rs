//! Which tensor datatype corresponds to a configuration's datatype, and the reverse?

use nerite_tensor::DataType;

use crate::proto;

/// The tensor datatype for a number in a configuration. `None` for `TYPE_INVALID`, and for numbers that are not in the enumeration.
pub fn tensor_data_type(number: i32) -> Option<DataType> {
    use proto::DataType as Config;
    Some(match Config::try_from(number).ok()? {
        Config::TypeInvalid => return None,
        Config::TypeBool => DataType::Bool,
        Config::TypeUint8 => DataType::Uint8,
        Config::TypeUint16 => DataType::Uint16,
        Config::TypeUint32 => DataType::Uint32,
        Config::TypeUint64 => DataType::Uint64,
        Config::TypeInt8 => DataType::Int8,
        Config::TypeInt16 => DataType::Int16,
        Config::TypeInt32 => DataType::Int32,
        Config::TypeInt64 => DataType::Int64,
        Config::TypeFp16 => DataType::Fp16,
        Config::TypeFp32 => DataType::Fp32,
        Config::TypeFp64 => DataType::Fp64,
        Config::TypeString => DataType::Bytes,
        Config::TypeBf16 => DataType::Bf16,
    })
}

/// The configuration's datatype for a tensor datatype.
pub fn config_data_type(datatype: DataType) -> proto::DataType {
    use proto::DataType as Config;
    match datatype {
        DataType::Bool => Config::TypeBool,
        DataType::Uint8 => Config::TypeUint8,
        DataType::Uint16 => Config::TypeUint16,
        DataType::Uint32 => Config::TypeUint32,
        DataType::Uint64 => Config::TypeUint64,
        DataType::Int8 => Config::TypeInt8,
        DataType::Int16 => Config::TypeInt16,
        DataType::Int32 => Config::TypeInt32,
        DataType::Int64 => Config::TypeInt64,
        DataType::Fp16 => Config::TypeFp16,
        DataType::Fp32 => Config::TypeFp32,
        DataType::Fp64 => Config::TypeFp64,
        DataType::Bytes => Config::TypeString,
        DataType::Bf16 => Config::TypeBf16,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_datatype_is_converted_there_and_back() {
        for datatype in DataType::ALL {
            let number = config_data_type(datatype) as i32;
            assert_eq!(number, datatype as i32, "{datatype}");
            assert_eq!(tensor_data_type(number), Some(datatype));
        }
        assert_eq!(tensor_data_type(0), None);
        assert_eq!(tensor_data_type(99), None);
    }
}
