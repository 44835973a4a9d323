//! Annotations of GitHub Actions: a line of output that shows on a line of a pull request.

/// `::error file=train.py,line=20,title=…::message`
pub(super) fn line(level: &str, properties: &[(&str, String)], message: &str) -> String {
    let properties: Vec<String> =
        properties.iter().map(|(name, value)| format!("{name}={}", property(value))).collect();
    format!("::{level} {}::{}", properties.join(","), escaped(message.trim()))
}

/// What would end the line, or begin an escape.
fn escaped(text: &str) -> String {
    text.replace('%', "%25").replace('\r', "%0D").replace('\n', "%0A")
}

/// What would end a property, as well; files are named as git names them.
fn property(text: &str) -> String {
    escaped(text).replace(std::path::MAIN_SEPARATOR, "/").replace(':', "%3A").replace(',', "%2C")
}

#[cfg(test)]
mod tests {
    use super::line;

    #[test]
    fn nothing_ends_a_line_or_a_property_early() {
        let properties = [("file", "a,b:c\n%".to_owned()), ("line", "3".to_owned())];
        assert_eq!(
            line("error", &properties, "50% a:b,\r\nmore\n"),
            "::error file=a%2Cb%3Ac%0A%25,line=3::50%25 a:b,%0D%0Amore"
        );
    }
}
