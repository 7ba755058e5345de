//! How is a body divided into messages?

use std::future::{Future, poll_fn};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use http_body::Body as _;
use hyper::body::Incoming;
use nerite_api::{Api, BodyCounter, Status, Upload};
use nerite_budget::{Account, Charge};
use nerite_compress::{Encoding, Lane};
use nerite_listen::{Awaited, BodyReadLimit};
use nerite_wire::proto::{Chain, Gather, PREFIX_BYTES};

use crate::compress::inflate;
use crate::failure::Failure;
use crate::limits::BYTES_PER_POLL;
use crate::message_format::MessageFormat;
use crate::serve::{Call, ServerState, UnreadOfCall};

/// Divides the bytes that arrive into messages.
pub(crate) struct Deframer {
    prefix: [u8; PREFIX_BYTES],
    prefix_len: usize,
    message: Option<PartialMessage>,
    /// The length of a message whose prefix has arrived, until it is taken.
    announced: Option<usize>,
    format: MessageFormat,
}

/// A message, or a part of one.
#[derive(Debug)]
pub(crate) enum Framed {
    /// A part of an uncompressed message, but not the last one, see [`MessageFormat::part_bytes`].
    Part(Chain),
    Plain(Chain),
    Compressed(Chain, Encoding),
}

/// A message whose prefix has arrived.
struct PartialMessage {
    left: usize,
    encoding: Option<Encoding>,
    gather: Gather,
    /// Bytes in `gather`.
    gathered: usize,
}

impl Deframer {
    /// A deframer for the messages of a call.
    pub(crate) fn new(format: MessageFormat) -> Deframer {
        Deframer { prefix: [0; PREFIX_BYTES], prefix_len: 0, message: None, announced: None, format }
    }

    /// Takes bytes from `bytes` up to the end of the next message. Returns the message once it is complete.
    pub(crate) fn take(&mut self, bytes: &mut Bytes) -> Result<Option<Framed>, Failure> {
        if self.message.is_none() && !self.take_prefix(bytes)? {
            return Ok(None);
        }
        let Some(partial) = &mut self.message else { return Ok(None) };
        let step = partial.left.min(bytes.len());
        partial.left -= step;
        partial.gather.push(bytes.split_to(step))?;
        partial.gathered += step;
        if partial.left > 0 {
            let part_bytes = self.format.part_bytes.filter(|_| partial.encoding.is_none());
            if part_bytes.is_none_or(|part_bytes| partial.gathered < part_bytes) {
                return Ok(None);
            }
            partial.gathered = 0;
            return Ok(Some(Framed::Part(mem::take(&mut partial.gather).finish())));
        }
        let Some(PartialMessage { encoding, gather, .. }) = self.message.take() else { return Ok(None) };
        let chain = gather.finish();
        Ok(Some(match encoding {
            Some(encoding) => Framed::Compressed(chain, encoding),
            None => Framed::Plain(chain),
        }))
    }

    /// The length of an incomplete message that is held in memory until it is complete. 0 if it is delivered in parts.
    fn held_bytes(&self) -> usize {
        let held =
            self.message.as_ref().filter(|partial| partial.encoding.is_some() || self.format.part_bytes.is_none());
        held.map_or(0, |partial| partial.gathered + partial.left)
    }

    /// Whether the last message is complete, and no byte of the next one has arrived.
    pub(crate) fn is_between(&self) -> bool {
        self.prefix_len == 0 && self.message.is_none()
    }

    fn take_prefix(&mut self, bytes: &mut Bytes) -> Result<bool, Failure> {
        let step = (PREFIX_BYTES - self.prefix_len).min(bytes.len());
        self.prefix[self.prefix_len..self.prefix_len + step].copy_from_slice(&bytes[..step]);
        self.prefix_len += step;
        bytes.advance(step);
        if self.prefix_len < PREFIX_BYTES {
            return Ok(false);
        }
        self.prefix_len = 0;
        let [flag, length @ ..] = self.prefix;
        let left = u32::from_be_bytes(length) as usize;
        let bytes_max = self.format.bytes_max;
        if left > bytes_max {
            return Err(Failure::too_large(left, bytes_max));
        }
        if flag > 1 {
            return Err(Failure::unreadable(format_args!("a message begins with the flag {flag}")));
        }
        let encoding = if flag == 1 { Some(self.format.encoding_of(left)?) } else { None };
        let is_held_whole = encoding.is_none() && self.format.part_bytes.is_none();
        let gather = Gather::new(if is_held_whole { left } else { 0 });
        self.message = Some(PartialMessage { left, encoding, gather, gathered: 0 });
        self.announced = Some(left);
        Ok(true)
    }
}

/// A message that is being inflated on another thread.
type Inflating = Pin<Box<dyn Future<Output = Result<Chain, Failure>> + Send>>;

/// The messages of one call.
pub(crate) struct Messages {
    body: Incoming,
    bytes: Bytes,
    deframer: Deframer,
    format: MessageFormat,
    lane: Lane,
    /// The message that is being inflated. Nothing is read meanwhile.
    inflating: Option<Inflating>,
    call: Call,
    /// Whether the call has only one message, so that the end of the body must follow soon.
    single: bool,
    account: Account,
    unread: UnreadOfCall,
    read_limit: BodyReadLimit,
    /// Books the bytes of messages at the client's token. `None` if the client has no quota of bytes.
    books: Option<Api>,
    /// Counts the bytes of the message that is arriving, if they are booked.
    counter: Option<BodyCounter>,
    /// Charge for the message that is arriving.
    charge: Charge,
    /// Charge for the message that is being inflated.
    compressed_charge: Charge,
}

/// A message, and the charge for it.
pub(crate) struct Message {
    pub(crate) chain: Chain,
    pub(crate) charge: Charge,
}

impl Message {
    /// Changes the charge to the current length, because the message may have been inflated.
    fn new(chain: Chain, mut charge: Charge) -> Message {
        charge.resize(chain.len());
        Message { chain, charge }
    }
}

impl Messages {
    pub(crate) fn new(body: Incoming, format: MessageFormat, lane: Lane, call: Call, server: &ServerState) -> Messages {
        let account = server.api.account().clone();
        Messages {
            body,
            bytes: Bytes::new(),
            deframer: Deframer::new(format),
            format,
            lane,
            inflating: None,
            call,
            single: false,
            unread: server.unread.of_call(),
            read_limit: BodyReadLimit::new(&account),
            charge: account.charge(0),
            compressed_charge: Charge::default(),
            account,
            books: None,
            counter: None,
        }
    }

    /// Books the bytes of these messages at the client's token.
    pub(crate) fn booked_at(self, api: &Api) -> Messages {
        Messages { books: api.books_bytes().then(|| api.clone()), ..self }
    }

    fn book(&mut self) -> Result<(), Failure> {
        let (Some(api), Some(bytes)) = (&self.books, self.deframer.announced.take()) else { return Ok(()) };
        self.counter = api.book_message(Some((PREFIX_BYTES + bytes) as u64)).map_err(Status::from)?;
        Ok(())
    }

    /// Whether more bytes must follow soon.
    pub(crate) fn is_incomplete(&self) -> bool {
        self.single || !self.deframer.is_between()
    }

    /// The next message. `None` when the client has ended the body.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Message>, Failure>> {
        loop {
            if let Some(inflating) = &mut self.inflating {
                let outcome = ready!(inflating.as_mut().poll(cx));
                self.inflating = None;
                let charge = mem::take(&mut self.compressed_charge);
                return Poll::Ready(outcome.map(|chain| Some(Message::new(chain, charge))));
            }
            match ready!(self.poll_framed(cx))? {
                None => return Poll::Ready(Ok(None)),
                // Only calls with a single message enable parts.
                Some((Framed::Part(_), _)) => return Poll::Ready(Err(Failure::unreadable("a part of a message"))),
                Some((Framed::Plain(chain), charge)) => return Poll::Ready(Ok(Some(Message::new(chain, charge)))),
                Some((Framed::Compressed(message, encoding), charge)) => {
                    self.compressed_charge = charge;
                    self.inflating = Some(Box::pin(self.inflate(message, encoding)));
                }
            }
        }
    }

    /// The only message of a call that has one, and the result of `on_complete`, which is called before the message is inflated.
    pub(crate) async fn only<T>(
        &mut self,
        on_complete: impl FnOnce() -> Result<T, Failure>,
    ) -> Result<(T, Message), Failure> {
        self.single = true;
        let mut upload = Upload::default();
        let (chain, encoding, charge) = loop {
            match poll_fn(|cx| self.poll_framed(cx)).await?.ok_or(Failure::NO_MESSAGE)? {
                (Framed::Part(part), _charge) => upload.append(&self.account, part.into_pieces()).await?,
                (Framed::Plain(chain), charge) => break (chain, None, charge),
                (Framed::Compressed(chain, encoding), charge) => break (chain, Some(encoding), charge),
            }
        };
        // The end of the body must be read too. Dropping a stream before its end resets it, and some clients report that as a failure.
        if poll_fn(|cx| self.poll_framed(cx)).await?.is_some() {
            return Err(Failure::unreadable("a second message where there can be only one"));
        }
        let found = on_complete()?;
        if !upload.is_empty() {
            upload.append(&self.account, chain.into_pieces()).await?;
            // The message is on disk and takes no memory, so nothing is charged.
            return Ok((found, Message { chain: upload.into_bytes()?.into(), charge: Charge::default() }));
        }
        let chain = match encoding {
            Some(encoding) => Box::pin(self.inflate(chain, encoding)).await?,
            None => chain,
        };
        Ok((found, Message::new(chain, charge)))
    }

    /// The next message, still compressed. Records whether the server waits for the client.
    fn poll_framed(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<(Framed, Charge)>, Failure>> {
        if self.call.gave_up() {
            return Poll::Ready(Err(Failure::SLOW));
        }
        let next = self.poll_raw(cx);
        match &next {
            Poll::Pending if self.is_incomplete() && !self.read_limit.is_waiting() => {
                self.call.progress.wait_for(Awaited::Body);
            }
            Poll::Ready(Ok(Some(_))) => self.call.progress.begin_request(),
            _ => self.call.progress.wait_for(Awaited::Nothing),
        }
        next.map_ok(|next| next.map(|message| (message, self.complete())))
    }

    /// Call this when a message is complete. Returns the charge for the message. Bytes after the message in the same frame get a new charge.
    fn complete(&mut self) -> Charge {
        self.read_limit.done();
        mem::replace(&mut self.charge, self.account.charge(self.bytes.len()))
    }

    fn poll_raw(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Framed>, Failure>> {
        let mut taken = 0;
        loop {
            if taken > BYTES_PER_POLL {
                // Yields to other tasks of this thread. The rest is read in the next poll.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            // The rest of the last frame is read first. It is empty if a message ended with the frame.
            if !self.bytes.is_empty() {
                let before = self.bytes.len();
                let complete = self.deframer.take(&mut self.bytes)?;
                self.book()?;
                self.counter.iter().for_each(|counter| counter.add(before - self.bytes.len()));
                if let Some(message) = complete {
                    return Poll::Ready(Ok(Some(message)));
                }
                let held_bytes = self.deframer.held_bytes() as u64;
                if let Err(over) = self.account.check_announced(held_bytes) {
                    return Poll::Ready(Err(Failure::over_budget(over)));
                }
                continue;
            }
            if let Err(shed) = ready!(self.read_limit.poll_ready(cx, self.charge.bytes())) {
                return Poll::Ready(Err(Failure::shed(&shed)));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => {
                    if let Ok(bytes) = frame.into_data() {
                        taken += bytes.len();
                        self.unread.took(bytes.len());
                        self.charge.grow(bytes.len());
                        self.call.progress.receive(bytes.len());
                        self.bytes = bytes;
                    }
                }
                Some(Err(_)) => return Poll::Ready(Err(Failure::GONE)),
                None if self.deframer.is_between() => return Poll::Ready(Ok(None)),
                None => return Poll::Ready(Err(Failure::unreadable("the call ended within a message"))),
            }
        }
    }

    fn inflate(
        &self,
        message: Chain,
        encoding: Encoding,
    ) -> impl Future<Output = Result<Chain, Failure>> + Send + use<> {
        inflate(message, encoding, self.format, self.lane.clone(), self.account.clone())
    }
}

#[cfg(test)]
mod tests {
    use nerite_compress::InflateError;
    use nerite_wire::proto::MESSAGE_BYTES_MAX;

    use super::*;

    const PLAIN: MessageFormat =
        MessageFormat { bytes_max: MESSAGE_BYTES_MAX, encoding: None, inflated_bytes_max: 1000, part_bytes: None };

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        let mut all = vec![flag];
        all.extend((message.len() as u32).to_be_bytes());
        all.extend(message);
        all
    }

    /// Divides `stream` into pieces of every length, and expects the same messages each time.
    #[track_caller]
    fn check(stream: &[u8], expect: Result<&[&[u8]], ()>) {
        for step in 1..=stream.len() {
            let mut deframer = Deframer::new(PLAIN);
            let mut got = Vec::new();
            let outcome = stream.chunks(step).try_for_each(|piece| {
                let mut piece = Bytes::copy_from_slice(piece);
                while !piece.is_empty() {
                    if let Some(framed) = deframer.take(&mut piece).map_err(drop)? {
                        let (Framed::Part(message) | Framed::Plain(message) | Framed::Compressed(message, _)) = framed;
                        let len = message.len();
                        got.push(message.into_reader().copy_to_bytes(len));
                    }
                }
                Ok(())
            });
            assert_eq!(
                outcome.map(|()| got),
                expect.map(|all| all.iter().map(|m| Bytes::copy_from_slice(m)).collect())
            );
        }
    }

    #[test]
    fn messages_are_found_in_pieces_of_any_length() {
        check(&framed(0, b"abc"), Ok(&[b"abc"]));
        check(&framed(0, b""), Ok(&[b""]));
        check(&[framed(0, b"ab"), framed(0, b""), framed(0, b"c")].concat(), Ok(&[b"ab", b"", b"c"]));
        check(&framed(0, b"abc")[..7], Ok(&[]));
    }

    #[test]
    fn a_long_message_is_delivered_in_parts() {
        let mut deframer = Deframer::new(MessageFormat { part_bytes: Some(4), ..PLAIN });
        let mut bytes = Bytes::from([framed(0, b"abcdefghij"), framed(0, b"abcd")].concat());
        let mut got = Vec::new();
        while !bytes.is_empty() {
            let mut piece = bytes.split_to(bytes.len().min(3));
            while !piece.is_empty() {
                let (is_part, chain) = match deframer.take(&mut piece) {
                    Ok(Some(Framed::Part(chain))) => (true, chain),
                    Ok(Some(Framed::Plain(chain))) => (false, chain),
                    Ok(None) => continue,
                    other => panic!("{other:?}"),
                };
                got.push((is_part, chain.into_pieces().concat()));
            }
        }
        assert_eq!(got.iter().map(|(part, _)| *part).collect::<Vec<_>>(), [true, false, false]);
        assert_eq!(got.iter().flat_map(|(_, bytes)| bytes.clone()).collect::<Vec<_>>(), b"abcdefghijabcd");
    }

    #[test]
    fn invalid_prefixes_are_refused() {
        check(&framed(1, b"abc"), Err(()));
        check(&framed(2, b"abc"), Err(()));
        check(&[0, 0x80, 0, 0, 0], Err(()));
    }

    #[test]
    fn a_compressed_message_that_would_inflate_too_far_is_refused_before_it_arrives() {
        let format = MessageFormat { encoding: Some(Encoding::Gzip), ..PLAIN };
        let take = |len: u32| {
            let prefix = [&[1], &len.to_be_bytes()[..]].concat();
            Deframer::new(format).take(&mut Bytes::from(prefix)).map(drop)
        };
        assert_eq!(take(2000), Ok(()));
        assert_eq!(
            take(2001),
            Err(Failure::inflates_too_far(&InflateError::TooLarge { bytes_max: 1000 }, PLAIN.bytes_max))
        );
    }

    #[test]
    fn a_message_longer_than_the_limit_of_its_call_is_refused_before_it_arrives() {
        let take = |len: u32| {
            let prefix = [&[0], &len.to_be_bytes()[..]].concat();
            Deframer::new(MessageFormat { bytes_max: 500, ..PLAIN }).take(&mut Bytes::from(prefix)).map(drop)
        };
        assert_eq!(take(500), Ok(()));
        assert_eq!(take(501), Err(Failure::too_large(501, 500)));
    }

    #[test]
    fn a_deframer_knows_when_it_is_between_messages() {
        let mut deframer = Deframer::new(PLAIN);
        assert!(deframer.is_between());
        assert_eq!(deframer.take(&mut Bytes::from_static(&[0, 0])).map(|m| m.is_none()), Ok(true));
        assert!(!deframer.is_between());
        assert_eq!(deframer.take(&mut Bytes::from_static(&[0, 0, 1])).map(|m| m.is_none()), Ok(true));
        assert!(!deframer.is_between());
        assert_eq!(deframer.take(&mut Bytes::from_static(&[7])).map(|m| m.is_some()), Ok(true));
        assert!(deframer.is_between());
    }
}
