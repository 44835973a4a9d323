//! Credentials, region and endpoint of a profile in `~/.aws`, which the S3 client does not read itself.

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::PathBuf;

/// Largest file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// Keys that are used; the names are also those of the client's settings.
const KEYS: [&str; 5] =
    ["aws_access_key_id", "aws_secret_access_key", "aws_session_token", "region", "endpoint_url"];

/// Returns the settings of the profile that `AWS_PROFILE` names, or of `default`.
pub(super) fn settings() -> BTreeMap<String, String> {
    let profile = env::var("AWS_PROFILE").unwrap_or_else(|_| "default".to_owned());
    let mut settings = BTreeMap::new();
    for (variable, file) in [("AWS_CONFIG_FILE", "config"), ("AWS_SHARED_CREDENTIALS_FILE", "credentials")] {
        let home = || env::home_dir().map(|home| home.join(".aws").join(file));
        let Some(path) = env::var_os(variable).map(PathBuf::from).or_else(home) else { continue };
        let is_small = fs::metadata(&path).is_ok_and(|metadata| metadata.len() <= MAX_FILE_BYTES);
        if let Some(text) = is_small.then(|| fs::read_to_string(&path).ok()).flatten() {
            settings.extend(parse(&text, &profile));
        }
    }
    settings
}

/// Returns the used keys of one section: `[name]`, or `[profile name]`.
fn parse(text: &str, profile: &str) -> BTreeMap<String, String> {
    let mut settings = BTreeMap::new();
    let mut is_ours = false;
    for line in text.lines() {
        if let Some(section) = line.trim().strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
            let section = section.trim();
            is_ours = section.strip_prefix("profile ").unwrap_or(section).trim() == profile;
        // Indented lines belong to nested settings, such as those of `s3 =`.
        } else if is_ours
            && !line.starts_with([' ', '\t', '#', ';'])
            && let Some((key, value)) = line.split_once('=')
            && KEYS.contains(&key.trim())
        {
            settings.insert(key.trim().to_owned(), value.trim().to_owned());
        }
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn only_the_chosen_profile_is_used() {
        let text = "[default]\nregion = a\n\n[profile lab]\nregion=b\ns3 =\n  endpoint_url = nested\n\
                    # region = c\naws_access_key_id = key\ncredential_process = /bin/evil\n[other]\n\
                    region = d\n";
        let lab = parse(text, "lab");
        let lab: Vec<(&str, &str)> = lab.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
        assert_eq!(lab, [("aws_access_key_id", "key"), ("region", "b")]);
        assert_eq!(parse(text, "default").len(), 1);
        assert!(parse(text, "none").is_empty());
    }
}
