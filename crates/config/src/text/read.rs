//! How are the tokens of the text form read into fields?

use prost_reflect::{DynamicMessage, FieldDescriptor, Kind as Type, MapKey, MessageDescriptor, ReflectMessage, Value};

use super::lex::{Kind, Lexer, Token};
use super::scalar::{self, unexpected, wanted};
use super::{Fault, Positioned};
use crate::{schema, suggest};

/// Reads a whole text as one message. The schema bounds the depth of the recursion, because no message contains itself.
pub(super) fn read(text: &[u8], desc: MessageDescriptor) -> Positioned<DynamicMessage> {
    let mut reader = Reader::new(text)?;
    let mut message = DynamicMessage::new(desc);
    while reader.next.kind != Kind::End {
        reader.field(&mut message)?;
    }
    Ok(message)
}

struct Reader<'a> {
    lexer: Lexer<'a>,
    next: Token<'a>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a [u8]) -> Positioned<Self> {
        let mut lexer = Lexer::new(text);
        let next = lexer.next()?;
        Ok(Self { lexer, next })
    }

    fn take(&mut self) -> Positioned<Token<'a>> {
        let following = self.lexer.next()?;
        Ok(std::mem::replace(&mut self.next, following))
    }

    fn take_mark(&mut self, mark: char) -> Positioned<bool> {
        let found = self.next.kind == Kind::Mark(mark);
        if found {
            self.take()?;
        }
        Ok(found)
    }

    /// Reads `name: value`, `name { … }`, `name: [ … ]` or `name [ {…}, … ]`, and one separator after it.
    fn field(&mut self, message: &mut DynamicMessage) -> Positioned<()> {
        let desc = message.descriptor();
        let field = self.field_name(&desc)?;
        let colon = self.take_mark(':')?;
        let is_message = matches!(field.kind(), Type::Message(_));
        if !colon && !is_message {
            return Err(Fault::new(format!("expected ':' after '{}', found {}", field.name(), self.next.kind.shown()))
                .cure(format!("write '{}: …'", field.name()))
                .at(self.next.at));
        }
        if field.is_list() || field.is_map() {
            self.elements(message, &field)?;
        } else {
            let at = self.next.at;
            let value = self.value(&field)?;
            check_single(message, &field, at)?;
            message.set_field(&field, value);
        }
        if !self.take_mark(',')? {
            self.take_mark(';')?;
        }
        Ok(())
    }

    fn field_name(&mut self, desc: &MessageDescriptor) -> Positioned<FieldDescriptor> {
        let token = self.take()?;
        let Kind::Name(name) = token.kind else {
            let cure = match &token.kind {
                Kind::Text(_) => Some("field names are written without quotes".to_owned()),
                Kind::Mark('{') => Some("a configuration is not enclosed in braces".to_owned()),
                Kind::Mark('}') => Some("there is a '}' too many".to_owned()),
                Kind::Mark('[') => Some("extensions are no part of a model configuration".to_owned()),
                _ => None,
            };
            return Err(Fault::new(format!(
                "expected the name of a field of {}, found {}",
                desc.name(),
                token.kind.shown()
            ))
            .maybe(cure)
            .at(token.at));
        };
        desc.get_field_by_name(name).ok_or_else(|| {
            Fault::new(format!("{} has no field '{name}'", desc.name())).maybe(suggestion(desc, name)).at(token.at)
        })
    }

    /// Reads the value, or the list of values, of a repeated field.
    fn elements(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor) -> Positioned<()> {
        if !self.take_mark('[')? {
            return self.element(message, field);
        }
        if self.take_mark(']')? {
            return Ok(());
        }
        loop {
            self.element(message, field)?;
            if self.take_mark(']')? {
                return Ok(());
            }
            if !self.take_mark(',')? {
                return Err(Fault::new(format!(
                    "expected ',' or ']' in the list of '{}', found {}",
                    field.name(),
                    self.next.kind.shown()
                ))
                .cure("values of a list are parted by commas")
                .at(self.next.at));
            }
        }
    }

    fn element(&mut self, message: &mut DynamicMessage, field: &FieldDescriptor) -> Positioned<()> {
        let value = self.value(field)?;
        if field.is_map() {
            let (key, value) = pair(field, &value);
            if let Some(map) = message.get_field_mut(field).as_map_mut() {
                map.insert(key, value);
            }
        } else if let Some(list) = message.get_field_mut(field).as_list_mut() {
            list.push(value);
        }
        Ok(())
    }

    fn value(&mut self, field: &FieldDescriptor) -> Positioned<Value> {
        match field.kind() {
            Type::Message(desc) => self.message(field, desc).map(Value::Message),
            kind @ (Type::String | Type::Bytes) => self.string(field, &kind),
            kind => {
                let negative = self.take_mark('-')?;
                let value = scalar::value(field.name(), &kind, negative, &self.next)?;
                self.take()?;
                Ok(value)
            }
        }
    }

    fn message(&mut self, field: &FieldDescriptor, desc: MessageDescriptor) -> Positioned<DynamicMessage> {
        let closing = match self.next.kind {
            Kind::Mark('{') => '}',
            Kind::Mark('<') => '>',
            _ => return Err(unexpected(field.name(), &field.kind(), &self.next)),
        };
        let opened = self.take()?.at;
        let mut message = DynamicMessage::new(desc);
        while !self.take_mark(closing)? {
            if self.next.kind == Kind::End {
                return Err(Fault::new(format!("'{}' is not closed", field.name()))
                    .cure(format!("add the missing '{closing}'"))
                    .at(opened));
            }
            self.field(&mut message)?;
        }
        Ok(message)
    }

    /// Reads a string, which may consist of several adjacent parts.
    fn string(&mut self, field: &FieldDescriptor, kind: &Type) -> Positioned<Value> {
        let at = self.next.at;
        let mut bytes = Vec::new();
        let mut pieces = 0;
        while let Kind::Text(piece) = &self.next.kind {
            bytes.extend_from_slice(piece);
            pieces += 1;
            self.take()?;
        }
        if pieces == 0 {
            return Err(unexpected(field.name(), kind, &self.next));
        }
        match String::from_utf8(bytes) {
            Ok(text) => Ok(Value::String(text)),
            Err(_) => Err(Fault::new(format!(
                "expected {} for '{}', found bytes that are not UTF-8",
                wanted(kind),
                field.name()
            ))
            .at(at)),
        }
    }
}

/// Refuses a second value of a field that is not repeated, and a second field of a oneof.
fn check_single(message: &DynamicMessage, field: &FieldDescriptor, at: usize) -> Positioned<()> {
    if message.has_field(field) {
        return Err(Fault::new(format!("'{}' is given a second time", field.name()))
            .cure("keep one of the two")
            .at(at));
    }
    let other = field.containing_oneof().and_then(|choice| choice.fields().find(|other| message.has_field(other)));
    match other {
        Some(other) => Err(Fault::new(format!("'{}' cannot stand beside '{}'", field.name(), other.name()))
            .cure("keep one of the two")
            .at(at)),
        None => Ok(()),
    }
}

/// Key and value of a map's entry. Each may be omitted, and is empty then.
fn pair(field: &FieldDescriptor, entry: &Value) -> (MapKey, Value) {
    let Type::Message(desc) = field.kind() else { unreachable!("a map field is of its entries' type") };
    let (key, value) = (desc.map_entry_key_field(), desc.map_entry_value_field());
    let Value::Message(entry) = entry else { unreachable!("the value of a message field was read as a message") };
    let key = match entry.get_field(&key).as_ref() {
        Value::String(key) => MapKey::String(key.clone()),
        Value::U64(key) => MapKey::U64(*key),
        _ => unreachable!("the schema's keys are strings and uint64"),
    };
    (key, entry.get_field(&value).into_owned())
}

/// The cure for an unknown field name: the most similar field of this message, or the message that has the field.
fn suggestion(desc: &MessageDescriptor, name: &str) -> Option<String> {
    let known: Vec<FieldDescriptor> = schema::declared(desc).collect();
    if let Some(near) = suggest::nearest(name, known.iter().map(FieldDescriptor::name)) {
        return Some(format!("did you mean '{near}'?"));
    }
    known.iter().find_map(|field| match field.kind() {
        Type::Message(inner) if inner.get_field_by_name(name).is_some() => {
            Some(format!("it belongs inside '{}'", field.name()))
        }
        _ => None,
    })
}
