//! Parser for the first JSON value of a text.

/// A JSON value. Numbers keep their notation.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    Null,
    Bool(bool),
    Number(String),
    Text(String),
    Array(Vec<Json>),
    Object(Vec<(String, Json)>),
}

/// Deepest nesting. Go rejects more than 10,000; no request needs 100.
const MAX_DEPTH: usize = 100;

/// Parses the first value of `text` and ignores the rest, as `json.Decoder` does.
pub fn parse(text: &[u8]) -> Result<Json, String> {
    let mut scanner = Scanner { text, at: 0 };
    scanner.blank();
    if scanner.at == text.len() {
        return Err("EOF".into());
    }
    scanner.value(0)
}

struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scanner<'_> {
    fn blank(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn peek(&self) -> Result<u8, String> {
        self.text.get(self.at).copied().ok_or_else(|| "unexpected EOF".to_owned())
    }

    fn next(&mut self) -> Result<u8, String> {
        let byte = self.peek()?;
        self.at += 1;
        Ok(byte)
    }

    fn value(&mut self, depth: usize) -> Result<Json, String> {
        self.blank();
        if depth > MAX_DEPTH {
            return Err("exceeded max depth".into());
        }
        match self.peek()? {
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => Ok(Json::Text(self.string()?)),
            b't' => self.literal("true", Json::Bool(true)),
            b'f' => self.literal("false", Json::Bool(false)),
            b'n' => self.literal("null", Json::Null),
            b'-' | b'0'..=b'9' => self.number(),
            other => Err(unexpected(other, "looking for beginning of value")),
        }
    }

    fn object(&mut self, depth: usize) -> Result<Json, String> {
        self.at += 1;
        let mut members = Vec::new();
        self.blank();
        if self.peek()? == b'}' {
            self.at += 1;
            return Ok(Json::Object(members));
        }
        loop {
            self.blank();
            match self.peek()? {
                b'"' => {}
                other => return Err(unexpected(other, "looking for beginning of object key string")),
            }
            let name = self.string()?;
            self.blank();
            match self.next()? {
                b':' => {}
                other => return Err(unexpected(other, "after object key")),
            }
            members.push((name, self.value(depth + 1)?));
            self.blank();
            match self.next()? {
                b',' => {}
                b'}' => return Ok(Json::Object(members)),
                other => return Err(unexpected(other, "after object key:value pair")),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<Json, String> {
        self.at += 1;
        let mut items = Vec::new();
        self.blank();
        if self.peek()? == b']' {
            self.at += 1;
            return Ok(Json::Array(items));
        }
        loop {
            items.push(self.value(depth + 1)?);
            self.blank();
            match self.next()? {
                b',' => {}
                b']' => return Ok(Json::Array(items)),
                other => return Err(unexpected(other, "after array element")),
            }
        }
    }

    fn literal(&mut self, word: &'static str, value: Json) -> Result<Json, String> {
        for expected in word.bytes() {
            let found = self.next()?;
            if found != expected {
                let context = format!("in literal {word} (expecting {})", quote(expected));
                return Err(unexpected(found, &context));
            }
        }
        Ok(value)
    }

    fn number(&mut self) -> Result<Json, String> {
        let start = self.at;
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.next()? {
            b'0' => {}
            b'1'..=b'9' => self.digits(),
            other => return Err(unexpected(other, "in numeric literal")),
        }
        if self.text.get(self.at) == Some(&b'.') {
            self.at += 1;
            self.digit("after decimal point in numeric literal")?;
        }
        if matches!(self.text.get(self.at), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek()?, b'+' | b'-') {
                self.at += 1;
            }
            self.digit("in exponent of numeric literal")?;
        }
        Ok(Json::Number(String::from_utf8_lossy(&self.text[start..self.at]).into_owned()))
    }

    fn digit(&mut self, context: &str) -> Result<(), String> {
        match self.next()? {
            b'0'..=b'9' => {
                self.digits();
                Ok(())
            }
            other => Err(unexpected(other, context)),
        }
    }

    fn digits(&mut self) {
        while matches!(self.text.get(self.at), Some(b'0'..=b'9')) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<String, String> {
        self.at += 1;
        let mut bytes = Vec::new();
        loop {
            match self.next()? {
                b'"' => return Ok(String::from_utf8_lossy(&bytes).into_owned()),
                b'\\' => self.escape(&mut bytes)?,
                control @ 0..0x20 => return Err(unexpected(control, "in string literal")),
                byte => bytes.push(byte),
            }
        }
    }

    fn escape(&mut self, bytes: &mut Vec<u8>) -> Result<(), String> {
        match self.next()? {
            b'b' => bytes.push(8),
            b'f' => bytes.push(12),
            b'n' => bytes.push(b'\n'),
            b'r' => bytes.push(b'\r'),
            b't' => bytes.push(b'\t'),
            same @ (b'"' | b'\\' | b'/') => bytes.push(same),
            b'u' => {
                let c = self.unicode()?;
                bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
            other => return Err(unexpected(other, "in string escape code")),
        }
        Ok(())
    }

    /// Parses the digits after `\\u` and the second half of a surrogate pair. A lone half is
    /// replaced.
    fn unicode(&mut self) -> Result<char, String> {
        let first = self.hex4()?;
        if (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with(b"\\u") {
            let rewind = self.at;
            self.at += 2;
            let second = self.hex4()?;
            if (0xdc00..0xe000).contains(&second) {
                let c = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
                return Ok(char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = rewind;
        }
        Ok(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32, String> {
        let mut value = 0;
        for _ in 0..4 {
            let byte = self.next()?;
            let digit = char::from(byte)
                .to_digit(16)
                .ok_or_else(|| unexpected(byte, "in \\u hexadecimal character escape"))?;
            value = value << 4 | digit;
        }
        Ok(value)
    }
}

fn unexpected(byte: u8, context: &str) -> String {
    format!("invalid character {} {context}", quote(byte))
}

/// Formats a byte as Go's scanner quotes it.
fn quote(byte: u8) -> String {
    match byte {
        b'\'' => r"'\''".into(),
        b'"' => "'\"'".into(),
        b'\\' => r"'\\'".into(),
        7 => r"'\a'".into(),
        8 => r"'\b'".into(),
        9 => r"'\t'".into(),
        10 => r"'\n'".into(),
        11 => r"'\v'".into(),
        12 => r"'\f'".into(),
        13 => r"'\r'".into(),
        0..0x20 | 0x7f => format!(r"'\x{byte:02x}'"),
        0x80..0xa0 | 0xad => format!(r"'\u{byte:04x}'"),
        _ => format!("'{}'", char::from(byte)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_gos_texts() {
        for (text, error) in [
            ("", "EOF"),
            (" \n", "EOF"),
            ("{", "unexpected EOF"),
            (r#"{"a"#, "unexpected EOF"),
            (r#"{"a":tru"#, "unexpected EOF"),
            ("{bad", "invalid character 'b' looking for beginning of object key string"),
            (r#"{"a":1,}"#, "invalid character '}' looking for beginning of object key string"),
            (r#"{"a" 1}"#, "invalid character '1' after object key"),
            (r#"{"a":1 "b"}"#, "invalid character '\"' after object key:value pair"),
            (r#"{"a":01}"#, "invalid character '1' after object key:value pair"),
            ("[1 2]", "invalid character '2' after array element"),
            ("[1,]", "invalid character ']' looking for beginning of value"),
            ("nope", "invalid character 'o' in literal null (expecting 'u')"),
            ("'a'", r"invalid character '\'' looking for beginning of value"),
            (r#""\q""#, "invalid character 'q' in string escape code"),
            (r#""\u12x""#, "invalid character 'x' in \\u hexadecimal character escape"),
            ("\"a\nb\"", r"invalid character '\n' in string literal"),
            ("-a", "invalid character 'a' in numeric literal"),
            ("1.x", "invalid character 'x' after decimal point in numeric literal"),
            ("1ex", "invalid character 'x' in exponent of numeric literal"),
            ("\u{0}", r"invalid character '\x00' looking for beginning of value"),
            ("é", "invalid character 'Ã' looking for beginning of value"),
        ] {
            assert_eq!(parse(text.as_bytes()), Err(error.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn text_after_the_first_value_is_ignored() {
        assert_eq!(parse(b"{} trailing"), Ok(Json::Object(vec![])));
        assert_eq!(parse(b" -1.5e+3 "), Ok(Json::Number("-1.5e+3".into())));
    }

    #[test]
    fn strings_are_unescaped() {
        let text = br#""a\"\\\/\b\f\n\r\t\u00e9\ud83d\ude00\ud800x""#;
        let expected = "a\"\\/\u{8}\u{c}\n\r\té😀\u{fffd}x";
        assert_eq!(parse(text), Ok(Json::Text(expected.into())));
    }

    #[test]
    fn deep_nesting_is_rejected() {
        assert_eq!(parse(&b"[".repeat(100_000)), Err("exceeded max depth".into()));
    }
}
