--------------------------------- MODULE Log ---------------------------------
(***************************************************************************)
(* The chain of a log's ledgers: docs/PROTOCOL.md, A.6. The numbers in     *)
(* comments (C01, D23, rule 14) are those of that page.                    *)
(*                                                                         *)
(* Processes that take a log over, lead it, and are deposed; the log's     *)
(* record, which lists its ledgers, behind compare-and-set; and ledgers.   *)
(* Of a ledger the module knows only what part A.1 promises (Ledger.tla):  *)
(* its owner pushes entries, and they are confirmed in order; whoever      *)
(* recovers it ends it between the last confirmed and the last pushed      *)
(* entry; after that its end never changes, and confirmations of entries   *)
(* up to the end may still come. An operator who accepts a loss ends a     *)
(* ledger earlier. Each entry holds one record.                            *)
(*                                                                         *)
(* A write of the record lies in a set until the store applies it or       *)
(* refuses it. It may lie there for ever, or be applied after its writer   *)
(* gave up waiting for the answer. A read is one step, as nothing comes of *)
(* it but what its process does next, which may be late.                   *)
(***************************************************************************)
EXTENDS Integers, Sequences, FiniteSets

CONSTANT Processes   \* their names

VARIABLES
    rec,       \* the record of the log that is stored, with its version
    ledgers,   \* all ledgers, in the order in which they were made
    proc,      \* by process
    msgs,      \* writes of the record, and the answers that somebody waits for
    garbage    \* ledgers that somebody knows to be in no list for good, and may delete

vars == <<rec, ledgers, proc, msgs, garbage>>

None == -2
NoEntry == -1
NoLedger == 0     \* ledgers count from 1 here

Max2(a, b) == IF a > b THEN a ELSE b
Min2(a, b) == IF a < b THEN a ELSE b
Last(s) == s[Len(s)]

-----------------------------------------------------------------------------
(***************************************************************************)
(* A ledger.                                                               *)
(*   first             the offset of its first record                      *)
(*   pushed, confirmed how many entries                                    *)
(*   end               its last entry, once it is CLOSED                   *)
(*   short             an accepted loss ended it                           *)
(*   request           of a ledger that was written apart, for a splice:   *)
(*                     "asked", "withdrawn" or "spliced"                   *)
(*   acked, denied     what callers were told: how many of its entries are *)
(*                     in the log; from which entry on they are not        *)
(***************************************************************************)
NewLedger ==
    [first |-> None, pushed |-> 0, confirmed |-> 0, end |-> None, short |-> FALSE, deleted |-> FALSE,
     request |-> "", acked |-> 0, denied |-> None]

IsClosed(d) == d.end # None

(* Where recovery may end it. *)
Ends(d) == IF IsClosed(d) THEN {d.end} ELSE (d.confirmed - 1)..(d.pushed - 1)

MayConfirm(d) == d.confirmed < d.pushed /\ (IsClosed(d) => d.confirmed <= d.end)

-----------------------------------------------------------------------------
(***************************************************************************)
(* The record. A segment is a ledger of the list. count is None until it is*)
(* counted; first is None until the segment before it is. lost is the gap  *)
(* of offsets before it.                                                   *)
(***************************************************************************)
Segment(l, epoch, first) == [l |-> l, epoch |-> epoch, first |-> first, count |-> None, lost |-> 0]

IsCounted(s) == s.count # None
EndOf(s) == IF s.first = None \/ s.count = None THEN None ELSE s.first + s.count
OpenSegments(r) == SelectSeq(r.segs, LAMBDA s : ~IsCounted(s))
CountedLength(r) == Len(r.segs) - Len(OpenSegments(r))
CountedEnd(r) == IF CountedLength(r) = 0 THEN r.before ELSE EndOf(r.segs[CountedLength(r)])
Lists(r, l) == \E i \in 1..Len(r.segs) : r.segs[i].l = l

(* The same leader with the same current ledger: the log may only have been truncated between the two. *)
SameChain(r, s) ==
    /\ r.epoch = s.epoch /\ r.sealed = s.sealed
    /\ Len(OpenSegments(r)) = Len(OpenSegments(s))
    /\ (r.segs = <<>>) = (s.segs = <<>>)
    /\ r.segs # <<>> => Last(r.segs).l = Last(s.segs).l

(* The segments with those from at on counted, one for each of counts. Each starts where the one before it
   ends, or after a gap. *)
RECURSIVE Counting(_, _, _)
Counting(segs, at, counts) ==
    IF counts = <<>> THEN segs
    ELSE LET c == Head(counts)
             first == segs[at].first + c.lost
             done == [segs EXCEPT ![at].first = first, ![at].count = c.n, ![at].lost = c.lost]
             next == IF at < Len(segs) THEN [done EXCEPT ![at + 1].first = first + c.n] ELSE done
         IN Counting(next, at + 1, Tail(counts))

Counted(r, counts) == [r EXCEPT !.segs = Counting(@, CountedLength(r) + 1, counts)]

(* Every write has a token of its own, and the next version. *)
Next(r, token) == [r EXCEPT !.token = token, !.version = @ + 1]

TakenOver(r, counts, l, token) ==
    LET counted == Counted(r, counts)
    IN Next([counted EXCEPT !.epoch = @ + 1,
                            !.segs = Append(@, Segment(l, r.epoch + 1, CountedEnd(counted)))], token)
Ended(r, counts, token) == Next([Counted(r, counts) EXCEPT !.epoch = @ + 1], token)
Sealed(r, counts, token) == [Ended(r, counts, token) EXCEPT !.sealed = TRUE]
Rolled(r, l, token) == Next([r EXCEPT !.segs = Append(@, Segment(l, r.epoch, None))], token)

(* A ledger that was written apart is counted at once. *)
WithSpliced(r, l) ==
    IF l = NoLedger THEN r
    ELSE [r EXCEPT !.segs = Append(@, [Segment(l, r.epoch, CountedEnd(r)) EXCEPT !.count = ledgers[l].pushed])]
Continued(r, count, spliced, l, token) ==
    LET behind == WithSpliced(Counted(r, <<count>>), spliced)
    IN Next([behind EXCEPT !.segs = Append(@, Segment(l, r.epoch, CountedEnd(behind)))], token)

(* Whole ledgers leave the list at its start. *)
Dropped(r, to) ==
    LET ends(k) == \A i \in 1..k : EndOf(r.segs[i]) # None /\ EndOf(r.segs[i]) <= to
    IN CHOOSE k \in 0..Len(r.segs) : ends(k) /\ (k < Len(r.segs) => ~ends(k + 1))
Truncated(r, to, token) ==
    LET k == Dropped(r, to)
    IN Next([r EXCEPT !.first = to, !.before = IF k = 0 THEN @ ELSE EndOf(r.segs[k]),
                      !.segs = SubSeq(@, k + 1, Len(@))], token)

-----------------------------------------------------------------------------
(* Compare-and-set. The transaction of a splice removes the request as well, so a batch counts once, and not
   after its request was withdrawn. *)
Write(p, x, r, spliced) ==
    [type |-> "write", from |-> p, attempt |-> x.attempt, rec |-> r, spliced |-> spliced]
Answer(m, ok) == [type |-> "written", to |-> m.from, attempt |-> m.attempt, ok |-> ok]

HasRequest(l) == l # NoLedger => ledgers[l].request = "asked"
IsAwaited(m) == proc[m.from].waiting /\ proc[m.from].attempt = m.attempt

WhenSpliced(l, r) ==
    IF l = NoLedger THEN ledgers
    ELSE LET s == CHOOSE s \in { r.segs[i] : i \in 1..Len(r.segs) } : s.l = l
         IN [ledgers EXCEPT ![l].first = s.first, ![l].acked = s.count, ![l].request = "spliced"]

StoreApplies(m) ==
    LET fits == m.rec.version = rec.version + 1 /\ HasRequest(m.spliced)
    IN /\ m \in msgs /\ m.type = "write"
       /\ rec' = IF fits THEN m.rec ELSE rec
       /\ ledgers' = IF fits THEN WhenSpliced(m.spliced, m.rec) ELSE ledgers
       /\ msgs' = (msgs \ {m}) \union (IF IsAwaited(m) THEN {Answer(m, fits)} ELSE {})
       /\ UNCHANGED <<proc, garbage>>

-----------------------------------------------------------------------------
(* What others do. *)

(* The list is shortened before ledgers are deleted. *)
Truncates(to) ==
    /\ to \in rec.first..CountedEnd(rec)
    /\ rec' = Truncated(rec, to, <<"truncated", rec.version>>)
    /\ garbage' = garbage \union { rec.segs[i].l : i \in 1..Dropped(rec, to) }
    /\ UNCHANGED <<ledgers, proc, msgs>>

Deletes(l) ==
    /\ l \in garbage
    /\ ledgers' = [ledgers EXCEPT ![l].deleted = TRUE]
    /\ UNCHANGED <<rec, proc, msgs, garbage>>

(* Bookies lost entries, which may have been acknowledged, and an operator accepts the loss for the ledger. *)
AcceptsLoss(l, end) ==
    /\ \E i \in 1..Len(rec.segs) : rec.segs[i].l = l /\ ~IsCounted(rec.segs[i])
    /\ ~IsClosed(ledgers[l]) /\ end \in NoEntry..(ledgers[l].pushed - 1)
    /\ ledgers' = [ledgers EXCEPT ![l].end = end, ![l].short = TRUE]
    /\ UNCHANGED <<rec, proc, msgs, garbage>>

AsksForSplice(n) ==
    /\ n > 0
    /\ ledgers' = Append(ledgers, [NewLedger EXCEPT !.pushed = n, !.confirmed = n, !.end = n - 1,
                                                    !.request = "asked"])
    /\ UNCHANGED <<rec, proc, msgs, garbage>>

Withdraws(l) ==
    /\ ledgers[l].request = "asked"
    /\ ledgers' = [ledgers EXCEPT ![l].request = "withdrawn"]
    /\ UNCHANGED <<rec, proc, msgs, garbage>>

(* A splice needs no leadership if no ledger is open. *)
Splices(l) ==
    /\ ledgers[l].request = "asked" /\ ~rec.sealed /\ OpenSegments(rec) = <<>>
    /\ rec' = Next(WithSpliced([rec EXCEPT !.epoch = Max2(@, 1)], l), <<"spliced", rec.version>>)
    /\ ledgers' = WhenSpliced(l, rec')
    /\ UNCHANGED <<proc, msgs, garbage>>

-----------------------------------------------------------------------------
(***************************************************************************)
(* A process.                                                              *)
(*   phase     "idle"; of a takeover "reading", "recovering", "creating",  *)
(*             "writing", "settling"; "leading"; "resolving": it led, and  *)
(*             finds out where its ledgers ended                           *)
(*   tokens, attempt    how many tokens it drew, how often it wrote        *)
(*   waiting   for the answer to its newest write                          *)
(*   tried     the record that it writes, until the outcome is known       *)
(* Of a takeover:                                                          *)
(*   aim       "lead"; "seal"; "recover": an operator accepts every loss   *)
(*   base      the record that it read                                     *)
(*   counts    of the open ledgers that it has recovered                   *)
(*   short     an accepted loss ended one of them                          *)
(*   made      the ledger that it made                                     *)
(*   doubt     an earlier attempt at its write may still be applied        *)
(* Of a leader:                                                            *)
(*   known     the newest record that it knows to be stored                *)
(*   current, draining, spare     the ledger that appends go to, the one   *)
(*             before it until that is counted, the one after it           *)
(*   wants     to roll                                                     *)
(*   asked, splice     somebody asks for a splice; what is spliced         *)
(*   closed    how many records the ledger holds that was closed last,     *)
(*             until it is counted                                         *)
(*   settling, refused, again     a read must settle its write; the write  *)
(*             surely did nothing; what is spliced must be found out again *)
(*   finishing it leaves in good order                                     *)
(*   sent      the entries without an answer: ledger, entry, offset        *)
(*   next      the offset of the next record                               *)
(*   toEnd, ends, shorts    of a leadership that is over: ledgers whose    *)
(*             ends are not known yet; those that are; those that an       *)
(*             accepted loss ended                                         *)
(***************************************************************************)
NoWork ==
    [phase |-> "idle", tokens |-> 0, attempt |-> 0, waiting |-> FALSE, tried |-> <<>>,
     aim |-> "", base |-> <<>>, counts |-> <<>>, short |-> FALSE, made |-> NoLedger, doubt |-> FALSE,
     known |-> <<>>, current |-> NoLedger, draining |-> NoLedger, spare |-> NoLedger, wants |-> FALSE,
     asked |-> FALSE, splice |-> <<>>, closed |-> <<>>, settling |-> FALSE, refused |-> FALSE,
     again |-> FALSE, finishing |-> FALSE, sent |-> <<>>, next |-> 0,
     toEnd |-> <<>>, ends |-> {}, shorts |-> {}]

Idle(x) == [NoWork EXCEPT !.tokens = x.tokens, !.attempt = x.attempt]

TakeoverPhases == {"reading", "recovering", "creating", "writing", "settling"}
IsTakingOver(x) == x.phase \in TakeoverPhases

Ledgers(l) == IF l = NoLedger THEN {} ELSE {l}

Answers(p) == { m \in msgs : m.type = "written" /\ m.to = p }

(* A process does something that concerns nobody else. *)
Becomes(p, x) ==
    /\ proc' = [proc EXCEPT ![p] = x]
    /\ UNCHANGED <<rec, ledgers, msgs, garbage>>

(* It dies, with whatever it has on its way. *)
Crashes(p) ==
    /\ proc[p].phase # "idle"
    /\ proc' = [proc EXCEPT ![p] = Idle(@)]
    /\ msgs' = msgs \ Answers(p)
    /\ UNCHANGED <<rec, ledgers, garbage>>

-----------------------------------------------------------------------------
(* Taking over. *)

Begins(p, aim) ==
    /\ proc[p].phase = "idle" /\ aim \in {"lead", "seal", "recover"}
    /\ Becomes(p, [proc[p] EXCEPT !.phase = "reading", !.aim = aim])

(* C01, D23: every ledger that is not counted is recovered, the older one first. *)
ToRecover(x) ==
    IF Len(x.counts) < Len(OpenSegments(x.base[1])) THEN OpenSegments(x.base[1])[Len(x.counts) + 1].l
    ELSE NoLedger

Following(x) ==
    IF ToRecover(x) # NoLedger THEN [x EXCEPT !.phase = "recovering"]
    ELSE IF x.aim = "recover" /\ x.counts = <<>> THEN Idle(x)
    ELSE IF x.aim = "lead" /\ x.made = NoLedger THEN [x EXCEPT !.phase = "creating"]
    ELSE [x EXCEPT !.phase = "writing"]

(* It starts from the record that is stored, with recovery. Nobody leads a sealed log. *)
Based(x) ==
    IF rec.sealed THEN Idle(x)
    ELSE Following([x EXCEPT !.base = <<rec>>, !.counts = <<>>, !.short = FALSE, !.tried = <<>>,
                             !.doubt = FALSE])

(* Only now it serves: nothing is appended before the list is written (C04). *)
Led(x, r) ==
    IF x.aim # "lead" THEN Idle(x)
    ELSE [Idle(x) EXCEPT !.phase = "leading", !.known = <<r>>, !.current = x.made, !.next = CountedEnd(r)]

(* After a conflict it starts from the beginning (C02). *)
Conflicted(x) == Based([x EXCEPT !.made = NoLedger])

TakeoverReads(p) ==
    LET x == proc[p]
    IN \/ /\ x.phase = "reading"
          /\ Becomes(p, Based(x))
       \/ /\ x.phase = "settling" /\ rec.token = x.tried[1].token
          /\ Becomes(p, Led(x, rec))
       \/ /\ x.phase = "settling" /\ rec.version = x.base[1].version
          /\ Becomes(p, [x EXCEPT !.phase = "writing"])       \* it may be applied yet: the same again
       \/ /\ x.phase = "settling" /\ rec.token # x.tried[1].token /\ rec.version # x.base[1].version
          /\ proc' = [proc EXCEPT ![p] = Conflicted(x)]
          /\ garbage' = garbage \union { l \in Ledgers(x.made) : ~Lists(rec, l) }
          /\ UNCHANGED <<rec, ledgers, msgs>>

(* How many records a ledger adds to the log. It counts only if it continues the ledger before it; if that
   one lost some, it counts as empty (C05). Not so behind an accepted loss: then there is a gap. *)
CountOf(d, end, start, keep) ==
    IF end = NoEntry \/ (d.first > start /\ ~keep) THEN [n |-> 0, lost |-> 0]
    ELSE [n |-> end + 1, lost |-> d.first - start]

(* A ledger that was not open together with the one before it begins where that one ended. *)
IsSound(x, d, end, start) ==
    end = NoEntry \/ d.first = start \/ (d.first > start /\ Len(x.counts) > 0)

IsBehindLoss(x, d, end, start) == x.short /\ end # NoEntry /\ d.first > start

StartOf(x) == CountedEnd(Counted(x.base[1], x.counts))

Recovers(p, l, end) ==
    LET x == proc[p]
        d == ledgers[l]
        start == StartOf(x)
        behind == IsBehindLoss(x, d, end, start)
    IN /\ x.phase = "recovering" /\ l = ToRecover(x) /\ ~d.deleted /\ end \in Ends(d)
       /\ IsSound(x, d, end, start)
       /\ behind => x.aim = "recover"
       /\ ledgers' = [ledgers EXCEPT ![l].end = end]
       /\ proc' = [proc EXCEPT ![p] =
            Following([x EXCEPT !.counts = Append(@, CountOf(d, end, start, behind)),
                                !.short = @ \/ d.short])]
       /\ UNCHANGED <<rec, msgs, garbage>>

(* It stops at an accepted loss, and names what it would drop: the records of l up to the offset to. *)
StopsAtLoss(p, l, end, to) ==
    LET x == proc[p]
        d == ledgers[l]
    IN /\ x.phase = "recovering" /\ l = ToRecover(x) /\ ~d.deleted /\ end \in Ends(d)
       /\ IsBehindLoss(x, d, end, StartOf(x)) /\ x.aim # "recover"
       /\ to = d.first + end + 1
       /\ ledgers' = [ledgers EXCEPT ![l].end = end]
       /\ proc' = [proc EXCEPT ![p] = Idle(x)]
       /\ UNCHANGED <<rec, msgs, garbage>>

Creates(p) ==
    LET x == proc[p]
    IN /\ x.phase = "creating"
       /\ ledgers' = Append(ledgers, NewLedger)
       /\ proc' = [proc EXCEPT ![p] = Following([x EXCEPT !.made = Len(ledgers) + 1])]
       /\ UNCHANGED <<rec, msgs, garbage>>

TakeoversRecord(x, token) ==
    CASE x.aim = "lead" -> TakenOver(x.base[1], x.counts, x.made, token)
      [] x.aim = "seal" -> Sealed(x.base[1], x.counts, token)
      [] x.aim = "recover" -> Ended(x.base[1], x.counts, token)

(* A ledger that may be listed is not deleted. *)
GivesUp(p) ==
    LET x == proc[p]
    IN /\ IsTakingOver(x)
       /\ proc' = [proc EXCEPT ![p] = Idle(x)]
       /\ msgs' = msgs \ Answers(p)
       /\ garbage' = garbage \union (IF x.tried = <<>> THEN Ledgers(x.made) ELSE {})
       /\ UNCHANGED <<rec, ledgers>>

(* The store could not be reached: the write surely did nothing, and it was the only one. *)
CannotWrite(p) ==
    LET x == proc[p]
        mine == { m \in msgs : m.type = "write" /\ m.from = p /\ m.attempt = x.attempt }
    IN /\ x.phase = "writing" /\ x.waiting /\ mine # {}
       /\ proc' = [proc EXCEPT ![p] = Idle(x)]
       /\ msgs' = msgs \ mine
       /\ garbage' = garbage \union (IF x.doubt THEN {} ELSE Ledgers(x.made))
       /\ UNCHANGED <<rec, ledgers>>

-----------------------------------------------------------------------------
(* Leading: what is sent, and what is answered. *)

IsHolding(x) == x.splice # <<>> /\ x.spare # NoLedger
Spliced(x) == IF x.splice = <<>> THEN NoLedger ELSE x.splice[1]
IsRolling(x) == x.wants \/ x.draining # NoLedger \/ x.splice # <<>>

(* A leader sends nothing from the close of its ledger for a splice until it knows the outcome. *)
Appends(p) ==
    LET x == proc[p]
        l == x.current
        d == ledgers[l]
    IN /\ x.phase = "leading" /\ ~x.finishing /\ ~IsHolding(x)
       /\ ledgers' = [ledgers EXCEPT ![l].first = IF d.first = None THEN x.next ELSE @, ![l].pushed = @ + 1]
       /\ proc' = [proc EXCEPT ![p] = [x EXCEPT !.sent = Append(@, <<l, d.pushed, x.next>>), !.next = @ + 1]]
       /\ UNCHANGED <<rec, msgs, garbage>>

(* The places in sent that can be acknowledged: entries of a newer ledger only after all of the older (C05). *)
Acknowledged(sent, ds) == { i \in 1..Len(sent) : \A j \in 1..i : sent[j][2] < ds[sent[j][1]].confirmed }

(* The ledgers after the callers of these entries were told that they are in the log, or are not. *)
Told(ds, in, out) ==
    [l \in 1..Len(ds) |->
        LET mineIn == { s[2] : s \in { s \in in : s[1] = l } }
            mineOut == { s[2] : s \in { s \in out : s[1] = l } }
            top == IF mineIn = {} THEN 0 ELSE 1 + CHOOSE e \in mineIn : \A f \in mineIn : f <= e
            low == IF mineOut = {} THEN None ELSE CHOOSE e \in mineOut : \A f \in mineOut : e <= f
        IN [ds[l] EXCEPT !.acked = Max2(@, top),
                         !.denied = IF low = None THEN @ ELSE IF @ = None THEN low ELSE Min2(@, low)]]

Confirms(p, l) ==
    LET x == proc[p]
        ds == [ledgers EXCEPT ![l].confirmed = @ + 1]
        acked == { x.sent[i] : i \in Acknowledged(x.sent, ds) }
    IN /\ x.phase = "leading" /\ l \in Ledgers(x.current) \union Ledgers(x.draining)
       /\ MayConfirm(ledgers[l])
       /\ ledgers' = Told(ds, acked, {})
       /\ proc' = [proc EXCEPT ![p].sent = SelectSeq(@, LAMBDA s : s \notin acked)]
       /\ UNCHANGED <<rec, msgs, garbage>>

-----------------------------------------------------------------------------
(* The end of a leadership. *)

(* The spare is nobody's, if no write that lists it can take effect any more. *)
Unused(x) == IF x.tried = <<>> THEN Ledgers(x.spare) ELSE {}

(* What the ends of its ledgers say of the entries that were sent. If the older ledger loses one, the newer
   ledger loses all: but behind an accepted loss, nothing is known. *)
IsIn(x, i) == \E k \in x.ends : k[1] = x.sent[i][1] /\ x.sent[i][2] <= k[2]
IsOut(x, i) == \E k \in x.ends : k[1] = x.sent[i][1] /\ x.sent[i][2] > k[2]
IsDurable(x, i) == \A j \in 1..i : IsIn(x, j)
IsLost(x, i) ==
    \E j \in 1..i : IsOut(x, j) /\ (x.sent[j][1] = x.sent[i][1] \/ x.sent[j][1] \notin x.shorts)

(* Every caller is answered, as far as anything is known. *)
Over(p, x, ds) ==
    /\ proc' = [proc EXCEPT ![p] = Idle(x)]
    /\ ledgers' = Told(ds, { x.sent[i] : i \in { i \in 1..Len(x.sent) : IsDurable(x, i) } },
                           { x.sent[i] : i \in { i \in 1..Len(x.sent) : IsLost(x, i) } })
    /\ garbage' = garbage \union Unused(x)

Falls(p, x, ds) ==
    IF x.sent = <<>> THEN Over(p, x, ds)
    ELSE /\ proc' = [proc EXCEPT ![p] =
                [x EXCEPT !.phase = "resolving", !.waiting = FALSE,
                          !.toEnd = SelectSeq(<<x.draining, x.current>>, LAMBDA l : l # NoLedger)]]
         /\ ledgers' = ds
         /\ UNCHANGED garbage

(* One of its ledgers is fenced, or closed elsewhere. *)
FindsClosed(p, l) ==
    LET x == proc[p]
    IN /\ x.phase = "leading" /\ l \in Ledgers(x.current) \union Ledgers(x.draining)
       /\ IsClosed(ledgers[l])
       /\ Falls(p, x, ledgers)
       /\ msgs' = msgs \ Answers(p)
       /\ UNCHANGED rec

(* Too few bookies: the writer of the ledger closes it at the last confirmed entry (A.1). *)
Fails(p, l) ==
    LET x == proc[p]
    IN /\ x.phase = "leading" /\ l \in Ledgers(x.current) \union Ledgers(x.draining)
       /\ ~IsClosed(ledgers[l])
       /\ Falls(p, x, [ledgers EXCEPT ![l].end = ledgers[l].confirmed - 1])
       /\ msgs' = msgs \ Answers(p)
       /\ UNCHANGED rec

(* It recovers its own ledgers; end is None if that fails, or if there is no such ledger any more. *)
FindsEnd(p, l, end) ==
    LET x == proc[p]
        d == ledgers[l]
        y == [x EXCEPT !.toEnd = SelectSeq(@, LAMBDA other : other # l),
                       !.ends = IF end = None THEN @ ELSE @ \union {<<l, end>>},
                       !.shorts = IF end # None /\ d.short THEN @ \union {l} ELSE @]
        ds == IF end = None THEN ledgers ELSE [ledgers EXCEPT ![l].end = end]
    IN /\ x.phase = "resolving" /\ \E i \in 1..Len(x.toEnd) : x.toEnd[i] = l
       /\ end = None \/ (end \in Ends(d) /\ ~d.deleted)
       /\ IF y.toEnd = <<>> THEN Over(p, y, ds)
          ELSE proc' = [proc EXCEPT ![p] = y] /\ ledgers' = ds /\ UNCHANGED garbage
       /\ UNCHANGED <<rec, msgs>>

(* The process is cancelled while it leads. *)
Leaves(p) ==
    /\ proc[p].phase = "leading"
    /\ Over(p, proc[p], ledgers)
    /\ msgs' = msgs \ Answers(p)
    /\ UNCHANGED rec

-----------------------------------------------------------------------------
(* Leading: the chain. *)

WantsRoll(p) ==
    LET x == proc[p]
    IN x.phase = "leading" /\ ~x.finishing /\ Becomes(p, [x EXCEPT !.wants = TRUE])

SeesRequest(p) ==
    LET x == proc[p]
    IN x.phase = "leading" /\ ~x.finishing /\ Becomes(p, [x EXCEPT !.asked = TRUE])

(* It decides whether to splice l, or nothing. If a splice was refused, or the record has changed since, it
   goes on in the next ledger in any case. *)
Admits(p, l) ==
    LET x == proc[p]
    IN /\ x.phase = "leading" /\ HasRequest(l)
       /\ \/ /\ x.again
             /\ Becomes(p, [x EXCEPT !.again = FALSE, !.splice = <<l>>])
          \/ /\ ~x.again /\ x.asked /\ ~IsRolling(x) /\ ~x.finishing
             /\ Becomes(p, [x EXCEPT !.asked = FALSE, !.splice = IF l = NoLedger THEN <<>> ELSE <<l>>])

CreatesSpare(p) ==
    LET x == proc[p]
    IN /\ x.phase = "leading" /\ x.spare = NoLedger /\ ~x.finishing
       /\ x.wants \/ x.splice # <<>>
       /\ ledgers' = Append(ledgers, NewLedger)
       /\ proc' = [proc EXCEPT ![p].spare = Len(ledgers) + 1]
       /\ UNCHANGED <<rec, msgs, garbage>>

(* It leaves in good order. A roll that is not written, and a splice whose ledger is not closed, are dropped. *)
Finishes(p) ==
    LET x == proc[p]
        kept == x.closed # <<>> \/ (IsHolding(x) /\ x.sent = <<>>)
    IN /\ x.phase = "leading" /\ ~x.finishing
       /\ Becomes(p, [x EXCEPT !.finishing = TRUE, !.splice = IF kept THEN @ ELSE <<>>, !.again = @ /\ kept,
                            !.wants = @ /\ x.tried # <<>> /\ x.closed = <<>>])

(* The ledger that is closed next, once it is drained: every entry that was sent to it is acknowledged. *)
Closing(x) ==
    IF x.draining # NoLedger THEN x.draining
    ELSE IF x.finishing \/ IsHolding(x) THEN x.current
    ELSE NoLedger
IsDrained(x, l) == \A i \in 1..Len(x.sent) : x.sent[i][1] # l

Closes(p) ==
    LET x == proc[p]
        l == Closing(x)
        d == ledgers[l]
        end == IF IsClosed(d) THEN d.end ELSE d.confirmed - 1
    IN /\ x.phase = "leading" /\ l # NoLedger /\ IsDrained(x, l)
       /\ x.tried = <<>> /\ x.closed = <<>>
       /\ end = d.pushed - 1
       /\ ledgers' = [ledgers EXCEPT ![l].end = end]
       /\ proc' = [proc EXCEPT ![p].closed = <<[n |-> d.pushed, lost |-> 0]>>]
       /\ UNCHANGED <<rec, msgs, garbage>>

(* Rule R (C03): one roll at a time. *)
MayRoll(x) == x.draining = NoLedger

IsWriteDue(x) ==
    \/ x.phase = "writing" /\ ~x.waiting
    \/ /\ x.phase = "leading" /\ ~x.waiting /\ ~x.settling /\ ~x.again
       /\ \/ x.tried # <<>> \/ x.closed # <<>>
          \/ x.wants /\ x.spare # NoLedger /\ x.splice = <<>> /\ MayRoll(x)

LeadersRecord(x, token) ==
    IF x.closed = <<>> THEN Rolled(x.known[1], x.spare, token)
    ELSE IF IsHolding(x) THEN Continued(x.known[1], x.closed[1], Spliced(x), x.spare, token)
    ELSE Next(Counted(x.known[1], x.closed), token)

(* The value stays the same until its outcome is known. *)
Formed(p, x) ==
    IF x.tried # <<>> THEN x
    ELSE LET token == <<p, x.tokens + 1>>
         IN [x EXCEPT !.tokens = @ + 1,
                      !.tried = <<IF IsTakingOver(x) THEN TakeoversRecord(x, token) ELSE LeadersRecord(x, token)>>]

Writes(p) ==
    LET x == [Formed(p, proc[p]) EXCEPT !.attempt = @ + 1, !.waiting = TRUE]
        spliced == IF x.phase = "leading" /\ x.closed # <<>> /\ IsHolding(x) THEN Spliced(x) ELSE NoLedger
    IN /\ IsWriteDue(proc[p])
       /\ proc' = [proc EXCEPT ![p] = x]
       /\ msgs' = msgs \union {Write(p, x, x.tried[1], spliced)}
       /\ UNCHANGED <<rec, ledgers, garbage>>

(* The leader's write took effect. Records that follow a splice have the offsets behind it. *)
Written(x, r) ==
    LET y == [x EXCEPT !.known = <<r>>, !.tried = <<>>, !.closed = <<>>, !.settling = FALSE,
                       !.refused = FALSE, !.waiting = FALSE]
    IN IF x.closed = <<>>
       THEN [y EXCEPT !.draining = x.current, !.current = x.spare, !.spare = NoLedger, !.wants = FALSE]
       ELSE IF IsHolding(x)
       THEN [y EXCEPT !.splice = <<>>, !.current = x.spare, !.spare = NoLedger, !.wants = FALSE,
                      !.next = Max2(@, Last(x.tried[1].segs).first)]
       ELSE [y EXCEPT !.draining = NoLedger]

IsFinal(x) == x.closed # <<>> /\ ~IsHolding(x) /\ x.draining = NoLedger

LeaderWritten(p, x, r) ==
    IF IsFinal(x) THEN Over(p, Written(x, r), ledgers)
    ELSE proc' = [proc EXCEPT ![p] = Written(x, r)] /\ UNCHANGED <<ledgers, garbage>>

(* A read settles a write whose outcome is unclear (rule 14). So after a refusal, and after no answer. *)
Unsettled(x, refused) ==
    IF x.phase = "writing" THEN [x EXCEPT !.phase = "settling", !.waiting = FALSE, !.doubt = TRUE]
    ELSE [x EXCEPT !.settling = TRUE, !.waiting = FALSE, !.refused = refused]

Hears(p, m) ==
    LET x == proc[p]
    IN /\ m \in msgs /\ m.type = "written" /\ m.to = p
       /\ x.waiting /\ m.attempt = x.attempt
       /\ msgs' = msgs \ {m}
       /\ IF ~m.ok
          THEN /\ proc' = [proc EXCEPT ![p] = Unsettled(x, IsHolding(x) /\ Spliced(x) # NoLedger)]
               /\ UNCHANGED <<ledgers, garbage>>
          ELSE IF x.phase = "writing"
          THEN proc' = [proc EXCEPT ![p] = Led(x, x.tried[1])] /\ UNCHANGED <<ledgers, garbage>>
          ELSE LeaderWritten(p, x, x.tried[1])
       /\ UNCHANGED rec

StopsWaiting(p) ==
    /\ proc[p].waiting
    /\ proc' = [proc EXCEPT ![p] = Unsettled(@, FALSE)]
    /\ msgs' = msgs \ Answers(p)
    /\ UNCHANGED <<rec, ledgers, garbage>>

(* The record changed without a takeover, by truncation, or the store refused the write: what was tried can
   take effect no more, and is formed again from the record that is stored. *)
Adopted(x) ==
    [x EXCEPT !.known = <<rec>>, !.tried = <<>>, !.settling = FALSE, !.refused = FALSE,
              !.again = x.splice # <<>>, !.wants = @ /\ ~x.finishing]

LeaderReads(p) ==
    LET x == proc[p]
    IN /\ x.phase = "leading" /\ ~x.waiting
       /\ IF x.tried # <<>> /\ SameChain(rec, x.tried[1])
          THEN LeaderWritten(p, x, rec)
          ELSE IF ~SameChain(rec, x.known[1])
          THEN Falls(p, [x EXCEPT !.tried = <<>>, !.settling = FALSE,
                                  !.spare = IF Lists(rec, @) THEN NoLedger ELSE @], ledgers)
          ELSE /\ proc' = [proc EXCEPT ![p] =
                    IF rec.version # x.known[1].version \/ x.refused THEN Adopted(x)
                    ELSE [x EXCEPT !.settling = FALSE]]
               /\ UNCHANGED <<ledgers, garbage>>
       /\ UNCHANGED <<rec, msgs>>

-----------------------------------------------------------------------------
FirstRecord ==
    [epoch |-> 0, segs |-> <<>>, first |-> 0, before |-> 0, sealed |-> FALSE, token |-> <<"made", 0>>,
     version |-> 0]

Init ==
    /\ rec = FirstRecord
    /\ ledgers = <<>>
    /\ proc = [p \in Processes |-> NoWork]
    /\ msgs = {}
    /\ garbage = {}

-----------------------------------------------------------------------------
(* Invariants of part C, over what is stored and what callers were told; never over what a process believes. *)

Listed == 1..Len(rec.segs)
LedgerOf(i) == ledgers[rec.segs[i].l]

(* The entries that were acknowledged, without those that an accepted loss has ended. *)
Kept(d) == IF d.short /\ IsClosed(d) THEN Min2(d.acked, d.end + 1) ELSE d.acked

OnlyLastTwoOpen == \A i \in Listed : i <= Len(rec.segs) - 2 => IsClosed(LedgerOf(i)) /\ IsCounted(rec.segs[i])

OffsetsDense == \A i \in Listed :
    LET s == rec.segs[i]
        start == IF i = 1 THEN rec.before ELSE EndOf(rec.segs[i - 1])
    IN /\ s.first = IF start = None THEN None ELSE start + s.lost
       /\ IsCounted(s) /\ s.count > 0 => s.count = LedgerOf(i).end + 1 /\ s.first = LedgerOf(i).first

ReplayComplete == \A i \in Listed :
    LET s == rec.segs[i]
        d == LedgerOf(i)
    IN IsCounted(s) => /\ Kept(d) <= s.count
                       /\ s.count = 0 => ~(d.end >= 0 /\ d.first = s.first)

TakeoverPrefixStable == \A i \in Listed : IsCounted(rec.segs[i]) => IsClosed(LedgerOf(i))

OneLeader == \A i \in Listed : rec.segs[i].epoch < rec.epoch => IsCounted(rec.segs[i])

LogOrder == \A i, j \in Listed :
    i < j /\ ~IsCounted(rec.segs[i]) /\ LedgerOf(j).acked > 0 => LedgerOf(i).acked >= LedgerOf(i).pushed

FailedMeansAbsent == \A i \in Listed :
    IsCounted(rec.segs[i]) /\ LedgerOf(i).denied # None => LedgerOf(i).denied >= rec.segs[i].count

LogAckedInList == \A l \in 1..Len(ledgers) :
    Kept(ledgers[l]) > 0 /\ ~Lists(rec, l) => ledgers[l].first + Kept(ledgers[l]) <= rec.before

GapsAreLosses == \A i \in Listed : i > 1 /\ rec.segs[i].lost > 0 => LedgerOf(i - 1).short

NoTruncation == \A l \in 1..Len(ledgers) :
    IsClosed(ledgers[l]) /\ ~ledgers[l].short => ledgers[l].acked <= ledgers[l].end + 1

SplicedOnce ==
    /\ \A i \in Listed : LedgerOf(i).request \in {"", "spliced"}
    /\ \A i, j \in Listed : i # j => rec.segs[i].l # rec.segs[j].l

DeletedIsUnlisted ==
    /\ \A l \in garbage : ~Lists(rec, l)
    /\ \A i \in Listed : ~LedgerOf(i).deleted

Safety ==
    /\ OnlyLastTwoOpen /\ OffsetsDense /\ ReplayComplete /\ TakeoverPrefixStable /\ OneLeader /\ LogOrder
    /\ FailedMeansAbsent /\ LogAckedInList /\ GapsAreLosses /\ NoTruncation /\ SplicedOnce /\ DeletedIsUnlisted

(* Each write of the record: it drops ledgers at the start of the list, and adds one at its end, apart from
   those that were written apart; what is counted never changes; nothing is added to a sealed log. *)
ListCas ==
    \E k \in 0..Len(rec.segs) :
        LET old == SubSeq(rec.segs, k + 1, Len(rec.segs))
            added == { i \in (Len(old) + 1)..Len(rec'.segs) : ledgers'[rec'.segs[i].l].request = "" }
        IN /\ Len(rec'.segs) >= Len(old)
           /\ \A i \in 1..Len(old) :
                IF IsCounted(old[i]) THEN rec'.segs[i] = old[i] ELSE rec'.segs[i].l = old[i].l
           /\ Cardinality(added) <= 1
           /\ rec.sealed => Len(rec'.segs) = Len(old) /\ rec'.sealed
           /\ rec'.epoch \in {rec.epoch, rec.epoch + 1}
           /\ rec'.version = rec.version + 1

Edges == [][rec' # rec => ListCas]_vars
=============================================================================
