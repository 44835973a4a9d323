//! Files in object stores, and behind HTTP.

use super::runtime::{self, PendingRequest};
use super::{FileLocation, MAX_FILES, StoredFile, aws_profile, without_credentials};
use failure::Failure;
use futures_util::TryStreamExt;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt, RetryConfig};
use std::collections::HashMap;
use std::io::{self, Read};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes per request when a file is read from its beginning. The next piece is requested before this one is
/// decoded.
const PIECE_BYTES: u64 = 8 << 20;
/// Longest wait for a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest wait for the next bytes of an answer.
const READ_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time for a request and its retries.
const RETRY_TIMEOUT: Duration = Duration::from_secs(90);
/// Most retries of a request that a server refused.
const MAX_RETRIES: usize = 6;
/// Most attempts at a range whose answer broke off.
const MAX_ATTEMPTS: usize = 4;
const NO_RANGES: &str = "the server does not support ranged requests";

/// A file in an object store.
#[derive(Clone, Debug)]
pub(super) struct RemoteFile {
    store: Arc<dyn ObjectStore>,
    path: Path,
    /// Sizes of all listed files by their paths; `None` if only this file was named.
    listed: Option<Arc<HashMap<Path, u64>>>,
}

impl RemoteFile {
    fn request(&self, range: Range<u64>) -> io::Result<PendingRequest<io::Result<Vec<u8>>>> {
        let (store, path) = (self.store.clone(), self.path.clone());
        runtime::start(async move { read_range(store.as_ref(), &path, range).await })
    }

    pub(super) fn read_range(&self, range: Range<u64>) -> io::Result<Vec<u8>> {
        self.request(range)?.wait()?
    }

    pub(super) fn open(&self, bytes: u64) -> RemoteReader {
        let file = self.clone();
        RemoteReader { file, bytes, requested: 0, next: None, piece: io::Cursor::default() }
    }

    pub(super) fn read_sibling(&self, file_name: &str, limit: u64) -> Option<io::Result<Vec<u8>>> {
        let folder = self.path.parts().count().saturating_sub(1);
        let path: Path = self.path.parts().take(folder).chain([file_name.into()]).collect();
        let size = match &self.listed {
            Some(listed) => *listed.get(&path)?,
            None => {
                let (store, path) = (self.store.clone(), path.clone());
                let found = runtime::start(async move { store.head(&path).await });
                match found.and_then(PendingRequest::wait) {
                    Ok(Ok(found)) => found.size,
                    Ok(Err(Error::NotFound { .. })) => return None,
                    Ok(Err(error)) => return Some(Err(explained(&error))),
                    Err(error) => return Some(Err(error)),
                }
            }
        };
        if size > limit {
            return Some(Err(io::Error::new(io::ErrorKind::FileTooLarge, "it is too large")));
        }
        if size == 0 {
            return Some(Ok(Vec::new()));
        }
        Some(RemoteFile { path, ..self.clone() }.read_range(0..size))
    }
}

/// Reads a range; an answer that breaks off is requested again.
async fn read_range(store: &dyn ObjectStore, path: &Path, range: Range<u64>) -> io::Result<Vec<u8>> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let expected = range.end - range.start;
        match store.get_range(path, range.clone()).await {
            Ok(bytes) if bytes.len() as u64 <= expected => return Ok(bytes.into()),
            // Servers that know no ranges send the whole file.
            Ok(_) => return Err(io::Error::new(io::ErrorKind::Unsupported, NO_RANGES)),
            Err(error) if is_final(&error) || attempts == MAX_ATTEMPTS => return Err(explained(&error)),
            Err(_) => tokio::time::sleep(Duration::from_millis(100 << attempts)).await,
        }
    }
}

/// Whether another attempt would fail the same way.
fn is_final(error: &Error) -> bool {
    !matches!(error, Error::Generic { .. })
}

/// A file that is read piece by piece, one piece ahead.
pub(super) struct RemoteReader {
    file: RemoteFile,
    bytes: u64,
    requested: u64,
    next: Option<PendingRequest<io::Result<Vec<u8>>>>,
    piece: io::Cursor<Vec<u8>>,
}

impl RemoteReader {
    fn ahead(&mut self) -> io::Result<()> {
        if self.next.is_none() && self.requested < self.bytes {
            let end = (self.requested + PIECE_BYTES).min(self.bytes);
            self.next = Some(self.file.request(self.requested..end)?);
            self.requested = end;
        }
        Ok(())
    }
}

impl Read for RemoteReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.piece.read(into)?;
        if count > 0 || into.is_empty() {
            return Ok(count);
        }
        self.ahead()?;
        let Some(next) = self.next.take() else { return Ok(0) };
        self.piece = io::Cursor::new(next.wait()??);
        self.ahead()?;
        self.piece.read(into)
    }
}

/// Adds the files that an address names: a file, all below a prefix, or those that match a pattern.
pub(super) fn find(address: &str, files: &mut Vec<StoredFile>) -> anyhow::Result<()> {
    let shown = without_credentials(address);
    let bad = |cause: String| Failure::new(format!("`{shown}` is not an address"), Some(cause), Some(FORMS));
    let url = url::Url::parse(address).map_err(|error| bad(error.to_string()))?;
    if url.query().is_some() && url.scheme().starts_with("http") {
        let cause = "it has a query, which an address for ranged requests of several files cannot have";
        return Err(bad(cause.to_owned()).into());
    }
    let (root, path) = split(address, &url);
    let (store, path) = open_store(&url, path).map_err(|error| match error {
        OpenError::UnknownScheme => bad(format!("`{}://` is not known", url.scheme())),
        OpenError::Store(error) => unreachable(&shown, &error),
    })?;
    let base = without_credentials(root);
    let name = |path: &Path| format!("{}/{path}", base.trim_end_matches('/'));
    let is_pattern = path.contains(['*', '?', '[']);
    if !is_pattern && !path.is_empty() && !path.ends_with('/') && has_file_ending(path) {
        let key = Path::from_url_path(path).map_err(|error| bad(error.to_string()))?;
        let (asked, of) = (store.clone(), key.clone());
        let found = runtime::start(async move { asked.head(&of).await })?.wait()?;
        let found = found.map_err(|error| unreachable(&shown, &error))?;
        let location = FileLocation::Remote(RemoteFile { store, path: key, listed: None });
        files.push(StoredFile { name: name(&found.location), bytes: found.size, location });
        return Ok(());
    }
    let pattern = is_pattern.then(|| glob::Pattern::new(path)).transpose();
    let pattern = pattern.map_err(|error| bad(error.to_string()))?;
    let prefix = match path.find(['*', '?', '[']) {
        Some(wildcard) => path[..wildcard].rsplit_once('/').map_or("", |(folder, _)| folder),
        None => path,
    };
    let prefix = Path::from_url_path(prefix).map_err(|error| bad(error.to_string()))?;
    let asked = store.clone();
    let listing = runtime::start(async move {
        let mut found = asked.list(Some(&prefix));
        let mut listed = HashMap::new();
        while let Some(file) = found.try_next().await? {
            listed.insert(file.location, file.size);
            if listed.len() > MAX_FILES {
                break;
            }
        }
        Ok::<_, Error>(listed)
    })?;
    let listed = listing.wait()?.map_err(|error| match url.scheme() {
        "http" | "https" => Failure::new(
            format!("`{shown}` cannot be listed"),
            Some(explained(&error).to_string()),
            Some("most web servers list nothing: name the files, as in http://host/run/rank{0..7}.pickle"),
        ),
        _ => unreachable(&shown, &error),
    })?;
    let options = glob::MatchOptions { require_literal_separator: true, ..glob::MatchOptions::new() };
    let listed = Arc::new(listed);
    let before = files.len();
    for (path, &bytes) in listed.iter() {
        if pattern.as_ref().is_some_and(|pattern| !pattern.matches_with(path.as_ref(), options)) {
            continue;
        }
        let file = RemoteFile { store: store.clone(), path: path.clone(), listed: Some(listed.clone()) };
        files.push(StoredFile { name: name(path), bytes, location: FileLocation::Remote(file) });
    }
    if files.len() == before {
        let hint = Some("check the bucket and the prefix");
        let failure = Failure::new(format!("`{shown}` has no files"), None, hint);
        return Err(failure.refused(io::ErrorKind::NotFound).into());
    }
    Ok(())
}

const FORMS: &str =
    "write s3://bucket/folder, gs://bucket/folder, az://container/folder or https://host/file";

/// Whether an address ends like a file rather than a prefix.
fn has_file_ending(path: &str) -> bool {
    let path = std::path::Path::new(path);
    inputs::looks_like_a_snapshot(path) || path.extension().is_some_and(|ending| ending == "arrow")
}

/// Splits an address into what names the store, and the path in it.
fn split<'a>(address: &'a str, url: &url::Url) -> (&'a str, &'a str) {
    let host = url.scheme().len() + "://".len();
    let path = address[host..].find('/').map_or(address.len(), |slash| host + slash);
    (&address[..path], address[path..].trim_start_matches('/'))
}

enum OpenError {
    UnknownScheme,
    Store(Error),
}

/// Opens the store of an address, and returns the path in it. Credentials are where the SDKs look for them.
fn open_store<'a>(url: &url::Url, path: &'a str) -> Result<(Arc<dyn ObjectStore>, &'a str), OpenError> {
    runtime::choose_tls();
    let retry = RetryConfig {
        max_retries: MAX_RETRIES,
        retry_timeout: RETRY_TIMEOUT,
        backoff: BackoffConfig { max_backoff: Duration::from_secs(5), ..BackoffConfig::default() },
    };
    let client = ClientOptions::new()
        .with_connect_timeout(CONNECT_TIMEOUT)
        .with_read_timeout(READ_TIMEOUT)
        .with_timeout(RETRY_TIMEOUT)
        .with_allow_http(true);
    let address = url.as_str();
    let store: Result<Arc<dyn ObjectStore>, Error> = match url.scheme() {
        "s3" | "s3a" => {
            s3().with_url(address).with_retry(retry).with_client_options(client).build().map(shared)
        }
        "gs" => {
            let builder = GoogleCloudStorageBuilder::from_env().with_url(address);
            builder.with_retry(retry).with_client_options(client).build().map(shared)
        }
        "az" | "abfs" | "abfss" => {
            let builder = MicrosoftAzureBuilder::from_env().with_url(address);
            builder.with_retry(retry).with_client_options(client).build().map(shared)
        }
        "http" | "https" => {
            let root = &url[..url::Position::BeforePath];
            HttpBuilder::new()
                .with_url(root)
                .with_retry(retry)
                .with_client_options(client)
                .build()
                .map(shared)
        }
        _ => return Err(OpenError::UnknownScheme),
    };
    Ok((store.map_err(OpenError::Store)?, path))
}

fn shared(store: impl ObjectStore) -> Arc<dyn ObjectStore> {
    Arc::new(store)
}

/// The environment, and where that says nothing the profile in `~/.aws`.
fn s3() -> AmazonS3Builder {
    let mut builder = AmazonS3Builder::from_env();
    let mut profile = aws_profile::settings();
    if builder.get_config_value(&AmazonS3ConfigKey::AccessKeyId).is_some() {
        // Keys come in pairs: those of a profile do not complete those of the environment.
        profile.retain(|name, _| !name.starts_with("aws_"));
    }
    for (name, value) in profile {
        let key = match name.as_str() {
            "aws_access_key_id" => AmazonS3ConfigKey::AccessKeyId,
            "aws_secret_access_key" => AmazonS3ConfigKey::SecretAccessKey,
            "aws_session_token" => AmazonS3ConfigKey::Token,
            "region" => AmazonS3ConfigKey::Region,
            _ => AmazonS3ConfigKey::Endpoint,
        };
        let is_default = key == AmazonS3ConfigKey::Region
            && std::env::var_os("AWS_REGION").is_none()
            && std::env::var_os("AWS_DEFAULT_REGION").is_none();
        if is_default || builder.get_config_value(&key).is_none() {
            builder = builder.with_config(key, value);
        }
    }
    builder
}

fn unreachable(shown: &str, error: &Error) -> Failure {
    let cause = explained(error);
    let hint = match error {
        Error::NotFound { .. } => "check the bucket and the path",
        Error::PermissionDenied { .. } | Error::Unauthenticated { .. } => {
            "set the credentials as for the store's own tools (AWS_PROFILE, GOOGLE_APPLICATION_CREDENTIALS, \
             AZURE_STORAGE_ACCOUNT_NAME, …)"
        }
        _ => "check the address, the credentials and the network",
    };
    let what = format!("`{shown}` cannot be read");
    Failure::new(what, Some(cause.to_string()), Some(hint)).refused(cause.kind())
}

/// The error of a store in words, without addresses: they can have signatures in them.
fn explained(error: &Error) -> io::Error {
    match error {
        Error::NotFound { .. } => io::Error::new(io::ErrorKind::NotFound, "there is no such file"),
        Error::PermissionDenied { .. } => {
            io::Error::new(io::ErrorKind::PermissionDenied, "the store denies access with these credentials")
        }
        Error::Unauthenticated { .. } => {
            io::Error::new(io::ErrorKind::PermissionDenied, "the store asks for credentials")
        }
        error => {
            let mut source: &dyn std::error::Error = error;
            while let Some(inner) = source.source() {
                source = inner;
            }
            let text = source.to_string();
            let words = text.split_whitespace().filter(|word| !word.contains("://") && !word.contains('?'));
            let text: String = words.collect::<Vec<_>>().join(" ").chars().take(200).collect();
            io::Error::new(io::ErrorKind::ConnectionAborted, text)
        }
    }
}
