------------------------------- MODULE Ledger -------------------------------
(***************************************************************************)
(* The protocol of one ledger: docs/PROTOCOL.md, A.1 to A.4. The numbers   *)
(* in comments (A.0, T12, D9, rule 5) are those of that page.              *)
(*                                                                         *)
(* One owner (the client that made the ledger), any number of recoverers,  *)
(* bookies, and a metadata store with compare-and-set. Messages lie in a   *)
(* set that only grows: each may be delivered late, often, or never, in    *)
(* any order. So a lost message is one that is never delivered, and a      *)
(* time-out is a step of the client that may come at any time.             *)
(*                                                                         *)
(* Points at which this protocol differs from other descriptions of it:    *)
(*   - write-backs of a recovery carry the LAC and LAFR at which it        *)
(*     started (D11, T25, T31, T32);                                       *)
(*   - a metadata write is two steps: the store applies it or not, and the *)
(*     client reads what is stored, and decides from that (rule 14);       *)
(*   - a recoverer that finds IN_RECOVERY writes nothing (D9);             *)
(*   - while the write of an ensemble change is under way, those that stay *)
(*     go on confirming, and what settles is carried for the replacement   *)
(*     (D14, queue rule 3);                                                *)
(*   - a frame carries several entries, and a bookie's answer to a read may*)
(*     be cut short.                                                       *)
(***************************************************************************)
EXTENDS Pending

CONSTANTS
    Owner,          \* the name of the owner
    Recoverers,     \* the names of recoverers
    Repairer,       \* the name of those who repair fragments
    FirstEnsemble,  \* the ensemble that the ledger was made with
    RoundEntries,   \* how many entries a recoverer asks for at once
    SyncsLate       \* TRUE: a bookie syncs in a step of its own, and may crash before it

VARIABLES
    meta,      \* the metadata, with its version
    bookie,    \* by bookie: what it has of this ledger
    owner,
    rec,       \* by recoverer
    msgs       \* all messages that were ever sent

vars == <<meta, bookie, owner, rec, msgs>>

Clients == {Owner} \union Recoverers

-----------------------------------------------------------------------------
(* Metadata. last is None exactly as long as the ledger is not CLOSED. *)

MetaWrite(from, version, state, frags, last) ==
    [type |-> "write", from |-> from, version |-> version, state |-> state, frags |-> frags, last |-> last]

(* The transaction of a repair also checks that the new bookie has not booted since it took the copies. *)
IsStillThere(m) ==
    m.from = Repairer => \A i \in 1..Len(meta.frags), slot \in Slots :
        LET new == m.frags[i].ens[slot] IN new # meta.frags[i].ens[slot] => bookie[new].boots = m.boots

(* Compare-and-set: a write is applied if nobody wrote since the version that it was formed from (T20, T22).
   Its answer may be lost. What happened is known by reading (rule 14). *)
StoreApplies(m) ==
    /\ m \in msgs /\ m.type = "write"
    /\ meta' = IF m.version = meta.version /\ IsStillThere(m)
               THEN [state |-> m.state, frags |-> m.frags, last |-> m.last, version |-> m.version + 1]
               ELSE meta
    /\ UNCHANGED <<bookie, owner, rec, msgs>>

-----------------------------------------------------------------------------
(***************************************************************************)
(* A bookie.                                                               *)
(*   entries, fenced, lac, lafr      what it has, in memory too            *)
(*   durable, fencedDurable, ...     what a crash leaves                   *)
(*   waiting                         requests that wait for the next sync  *)
(*   limbo                           it may have lost entries (A.3)        *)
(*   copied                          it has copies, its own or a repair's; *)
(*                                   only LacIsCommitted looks at this     *)
(*   boots                           how often it booted after a loss      *)
(***************************************************************************)
NewBookie ==
    [entries |-> {}, fenced |-> FALSE, lac |-> NoEntry, lafr |-> NoEntry,
     durable |-> {}, fencedDurable |-> FALSE, toldLac |-> NoEntry, toldLafr |-> NoEntry,
     durableLac |-> NoEntry, durableLafr |-> NoEntry,
     waiting |-> {}, limbo |-> FALSE, copied |-> FALSE, boots |-> 0]

AddAnswer(m, status) ==
    [type |-> "added", to |-> m.from, bookie |-> m.to, tenure |-> m.tenure,
     first |-> m.first, last |-> m.last, status |-> status]

FenceAnswer(b, m) ==
    [type |-> "fenced", to |-> m.from, bookie |-> m.to, slot |-> m.slot, lac |-> b.lac, lafr |-> b.lafr]

Asked(m) == { e \in m.first..m.last : (e - m.first) % m.stride = 0 }

(* An answer says nothing about entries after through. In limbo it denies nothing (A.3). *)
ReadAnswer(b, m, through) ==
    [type |-> "read", to |-> m.from, bookie |-> m.to, slot |-> m.slot, first |-> m.first, last |-> m.last,
     round |-> m.round, through |-> through,
     found |-> { e \in Asked(m) \intersect b.durable : e <= through }, unknown |-> b.limbo]

(* The answers to requests that waited for the sync. A read sees what is durable when it is answered. *)
AnswerTo(b, m) ==
    CASE m.type = "add" -> AddAnswer(m, "ok")
      [] m.type = "fence" -> FenceAnswer(b, m)
      [] m.type = "readask" -> ReadAnswer(b, m, m.last)

(* A.1: an ordinary add is taken until the fence, a recovery add always (rule 5). *)
Refuses(b, m) == b.fenced /\ ~m.recovery

Taken(b, m) ==
    LET fresh == m.entries \ b.entries # {}
    IN [b EXCEPT !.entries = @ \union m.entries,
                 !.lac = Max2(@, m.lac), !.lafr = Max2(@, m.lafr),      \* rule 9: the highest that it was told
                 !.toldLac = IF fresh THEN Max2(@, m.lac) ELSE @,
                 !.toldLafr = IF fresh THEN Max2(@, m.lafr) ELSE @]

(* A fence, and a read of a recovery, fence the ledger first, also one that the bookie never saw (T01, T24). *)
Handled(b, m) ==
    IF m.type = "add"
    THEN (IF Refuses(b, m) THEN b ELSE [Taken(b, m) EXCEPT !.copied = @ \/ m.from = Repairer])
    ELSE [b EXCEPT !.fenced = TRUE]

(* Whether an answer must wait for a sync (rules 2 and 7). *)
MustWait(b, m) ==
    IF m.type = "add" THEN ~m.entries \subseteq b.durable
    ELSE ~b.fencedDurable

Synced(b) ==
    [b EXCEPT !.durable = b.entries, !.fencedDurable = b.fenced,
              !.durableLac = b.toldLac, !.durableLafr = b.toldLafr, !.waiting = {}]

BookieHandles(m) ==
    LET before == bookie[m.to]
        taken == Handled(before, m)
        b == IF SyncsLate THEN taken ELSE Synced(taken)
    IN /\ m \in msgs /\ m.type \in {"add", "fence", "readask"}
       /\ IF m.type = "add" /\ Refuses(before, m)
          THEN /\ bookie' = bookie
               /\ msgs' = msgs \union {AddAnswer(m, "refused")}
          ELSE IF MustWait(b, m)
          THEN /\ bookie' = [bookie EXCEPT ![m.to] = [b EXCEPT !.waiting = @ \union {m}]]
               /\ msgs' = msgs
          ELSE /\ bookie' = [bookie EXCEPT ![m.to] = b]
               /\ msgs' = msgs \union {AnswerTo(b, m)}
       /\ UNCHANGED <<meta, owner, rec>>

(* A read is answered with fewer entries than it asked for. *)
BookieAnswersShort(m, through) ==
    LET b == Synced(Handled(bookie[m.to], m))
    IN /\ m \in msgs /\ m.type = "readask" /\ ~SyncsLate
       /\ through \in (m.first - 1)..m.last
       /\ bookie' = [bookie EXCEPT ![m.to] = b]
       /\ msgs' = msgs \union {ReadAnswer(b, m, through)}
       /\ UNCHANGED <<meta, owner, rec>>

BookieSyncs(n) ==
    LET b == Synced(bookie[n])
    IN /\ SyncsLate
       /\ bookie' = [bookie EXCEPT ![n] = b]
       /\ msgs' = msgs \union { AnswerTo(b, m) : m \in bookie[n].waiting }
       /\ UNCHANGED <<meta, owner, rec>>

(* Who crashes keeps what is durable. A fence that was confirmed is (T08). *)
BookieCrashes(n) ==
    LET b == bookie[n]
    IN /\ SyncsLate
       /\ bookie' = [bookie EXCEPT ![n] =
            [b EXCEPT !.entries = b.durable, !.fenced = b.fencedDurable, !.waiting = {},
                      !.lac = b.durableLac, !.lafr = b.durableLafr,
                      !.toldLac = b.durableLac, !.toldLafr = b.durableLafr]]
       /\ UNCHANGED <<meta, owner, rec, msgs>>

(* Who lost its data boots with marks: it refuses ordinary adds for ever, and denies nothing (A.3, D27). *)
BookieLosesAll(n) ==
    /\ bookie' = [bookie EXCEPT ![n] =
            [NewBookie EXCEPT !.fenced = TRUE, !.fencedDurable = TRUE, !.limbo = TRUE,
                             !.boots = bookie[n].boots + 1]]
    /\ UNCHANGED <<meta, owner, rec, msgs>>

FragmentOf(frags, e) ==
    frags[Max({ i \in 1..Len(frags) : frags[i].first <= e })]
HoldersOf(e) == { FragmentOf(meta.frags, e).ens[s] : s \in WriteSet(e) }
ShareOf(n) == { e \in 0..meta.last : n \in HoldersOf(e) }

(* The end of limbo (A.3, phase two). Once the ledger is CLOSED, the bookie copies back what it lacks of its
   share from the others that hold it. A copy comes as a recovery add, and tells that all is committed. *)
BookieCopiesBack(n, e) ==
    LET copy == [entries |-> {e}, lac |-> meta.last, lafr |-> IF Guaranteed THEN meta.last ELSE NoEntry]
    IN /\ bookie[n].limbo /\ meta.state = "CLOSED"
       /\ e \in ShareOf(n) \ bookie[n].durable
       /\ \E o \in HoldersOf(e) : e \in bookie[o].durable
       /\ bookie' = [bookie EXCEPT ![n] = [Synced(Taken(@, copy)) EXCEPT !.copied = TRUE]]
       /\ UNCHANGED <<meta, owner, rec, msgs>>

(* Limbo ends when the bookie has its whole share durably. It goes on to refuse ordinary adds. *)
MayLeaveLimbo(n) == meta.state = "CLOSED" /\ ShareOf(n) \subseteq bookie[n].durable

BookieLeavesLimbo(n) ==
    /\ bookie[n].limbo /\ MayLeaveLimbo(n)
    /\ bookie' = [bookie EXCEPT ![n].limbo = FALSE]
    /\ UNCHANGED <<meta, owner, rec, msgs>>

-----------------------------------------------------------------------------
(***************************************************************************)
(* The owner.                                                              *)
(*   mode      "open"; "closing": the end is fixed at end; "closed": the   *)
(*             closing write took effect; "dead": nothing counts any more  *)
(*   p         the pending adds                                            *)
(*   repl      the change under way, by slot                               *)
(*   attempts  the last fragments in the writes that this change attempted *)
(*   untried   replacements that have confirmed nothing yet                *)
(*   writing   a metadata write is under way, its outcome not known        *)
(*   known     the newest metadata that it read                            *)
(*   fate      of the adds above the LAC, once it is over: "absent" are not*)
(*             in the ledger for certain, "unknown" may be (A.7)           *)
(***************************************************************************)
NoChange == [s \in {} |-> ""]

NewOwner(m) ==
    [mode |-> "open", p |-> NewPending(m.frags, NoEntry), end |-> None, repl |-> NoChange, attempts |-> {},
     untried |-> {}, writing |-> FALSE, known |-> m, fate |-> "none"]

OwnerPushes(count) ==
    /\ owner.mode = "open" /\ count >= 1
    /\ owner' = [owner EXCEPT !.p = Push(@, count)]
    /\ UNCHANGED <<meta, bookie, rec, msgs>>

(* The frame of entries first..last for one slot: those that the slot holds, with the LAC and LAFR. *)
Frame(from, p, slot, first, last, lac, lafr, recovery) ==
    [type |-> "add", from |-> from, to |-> p.ens[slot], tenure |-> p.tenure[slot], first |-> first,
     last |-> last, entries |-> Held(slot, first, last), lac |-> lac, lafr |-> lafr, recovery |-> recovery]

OwnerSends(slot, first, last) ==
    /\ owner.mode = "open"
    /\ MaySend(owner.p, slot, first, last)
    /\ msgs' = msgs \union {Frame(Owner, owner.p, slot, first, last, owner.p.lac, owner.p.lafr, FALSE)}
    /\ owner' = [owner EXCEPT !.p = Sent(@, slot, last)]
    /\ UNCHANGED <<meta, bookie, rec>>

(* Rule 16: a frame without entries tells the LAC. *)
OwnerPublishes(slot) ==
    LET p == owner.p
    IN /\ owner.mode = "open" /\ slot \notin p.failed /\ p.lac > NoEntry
       /\ msgs' = msgs \union {Frame(Owner, p, slot, p.lac + 1, p.lac, p.lac, p.lafr, FALSE)}
       /\ UNCHANGED <<meta, bookie, owner, rec>>

(* Nothing counts after the end (T06), nor does the answer to a frame without entries. *)
OwnerHearsOk(m) ==
    /\ m \in msgs /\ m.type = "added" /\ m.to = Owner /\ m.status = "ok"
    /\ IsCurrent(owner.p, m)
    /\ owner' = IF owner.mode # "open" \/ m.first > m.last THEN owner
                ELSE [owner EXCEPT !.untried = @ \ {m.bookie},
                                   !.p = AddOk(@, SlotOf(@, m.bookie), m.first, m.last)]
    /\ UNCHANGED <<meta, bookie, rec, msgs>>

(* A.1 "is fenced": the fence ends the writer, and starts no change (D12). A replacement that has confirmed
   nothing yet fails instead. *)
OwnerHearsFence(m) ==
    /\ m \in msgs /\ m.type = "added" /\ m.to = Owner /\ m.status = "refused"
    /\ IsCurrent(owner.p, m)
    /\ owner' = IF owner.mode # "open" THEN owner
                ELSE IF m.bookie \in owner.untried
                THEN [owner EXCEPT !.p = Fail(@, SlotOf(@, m.bookie))]
                ELSE [owner EXCEPT !.mode = "dead", !.fate = "unknown", !.writing = FALSE]
    /\ UNCHANGED <<meta, bookie, rec, msgs>>

OwnerFails(slot) ==
    /\ owner' = [owner EXCEPT !.p = Fail(@, slot)]
    /\ UNCHANGED <<meta, bookie, rec, msgs>>

OwnerConnects(slot) ==
    /\ owner' = [owner EXCEPT !.p = Connect(@, slot)]
    /\ UNCHANGED <<meta, bookie, rec, msgs>>

(* The write that the owner needs now, formed from the newest metadata that it knows. *)
ClosingWrite(o) == MetaWrite(Owner, o.known.version, "CLOSED", o.known.frags, o.end)
ChangeWrite(o) ==
    MetaWrite(Owner, o.known.version, "OPEN", ChangedFragments(o.p, o.repl, o.known.frags), None)

Formed(o) ==
    IF o.mode = "closing" THEN [o EXCEPT !.writing = TRUE]
    ELSE IF o.mode = "open" /\ DOMAIN o.repl # {}
    THEN [o EXCEPT !.writing = TRUE, !.attempts = @ \union {LastOf(ChangeWrite(o).frags)}]
    ELSE [o EXCEPT !.writing = FALSE]

WriteOf(o) == IF ~o.writing THEN {} ELSE {IF o.mode = "closing" THEN ClosingWrite(o) ELSE ChangeWrite(o)}

(* One change at a time. The leaving slots are stripped before the write is sent (T14, T15). *)
OwnerChanges(repl) ==
    /\ owner.mode = "open" /\ DOMAIN owner.repl = {}
    /\ IsReplacement(owner.p, repl, FullPinning)
    /\ owner' = Formed([owner EXCEPT !.p = Strip(@, DOMAIN repl, TRUE), !.repl = repl])
    /\ msgs' = msgs \union WriteOf(owner')
    /\ UNCHANGED <<meta, bookie, rec>>

(* The ledger ends at the LAC (T05). A change that is being written is waited for. *)
BeginClose(o) ==
    LET closing == [o EXCEPT !.mode = "closing", !.end = o.p.lac]
    IN IF o.writing THEN closing ELSE Formed(closing)

OwnerCloses ==
    /\ owner.mode = "open"
    /\ Guaranteed => IsDrained(owner.p)     \* T18, D18
    /\ owner' = BeginClose(owner)
    /\ msgs' = msgs \union (IF owner.writing THEN {} ELSE WriteOf(owner'))
    /\ UNCHANGED <<meta, bookie, rec>>

(* Too few bookies. In guaranteed mode the ledger stays OPEN for recovery. *)
OwnerGivesUp ==
    /\ owner.mode = "open"
    /\ owner' = IF Guaranteed THEN [owner EXCEPT !.mode = "dead", !.fate = "unknown", !.writing = FALSE]
                ELSE BeginClose(owner)
    /\ msgs' = msgs \union (IF owner.writing \/ Guaranteed THEN {} ELSE WriteOf(owner'))
    /\ UNCHANGED <<meta, bookie, rec>>

(* The owner reads what is stored, whatever became of its write, and decides from that. *)
Dead(o, fate) == [o EXCEPT !.mode = "dead", !.fate = fate]

OwnerAfterReading ==
    LET o == [owner EXCEPT !.writing = FALSE, !.known = meta]
    IN IF meta.state = "IN_RECOVERY" THEN Dead(o, "unknown")
       ELSE IF meta.state = "CLOSED" THEN
            IF o.mode = "closing" /\ meta.last = o.end THEN [o EXCEPT !.mode = "closed", !.fate = "absent"]
            ELSE Dead(o, IF meta.last > o.p.lac THEN "unknown" ELSE "absent")
       ELSE IF LastOf(meta.frags) \in o.attempts THEN
            Formed([o EXCEPT !.p = Install(@, o.repl, meta.frags), !.attempts = {}, !.repl = NoChange,
                             !.untried = @ \union { o.repl[s] : s \in DOMAIN o.repl }])
       ELSE IF LastOf(meta.frags) # LastOf(o.p.frags) THEN Dead(o, "unknown")
       ELSE Formed(o)

OwnerReads ==
    /\ owner.writing
    /\ owner' = OwnerAfterReading
    /\ msgs' = msgs \union WriteOf(owner')
    /\ UNCHANGED <<meta, bookie, rec>>

-----------------------------------------------------------------------------
(***************************************************************************)
(* A recoverer (A.1 "Recovery").                                           *)
(*   phase    "none", "announcing", "fencing", "reading", "closing",       *)
(*            "done", "failed"                                             *)
(*   known    the metadata that it goes by                                 *)
(*   frozen   the last fragment when it began, at position count           *)
(*   fenced, unfenced   slots that confirmed the fence, or could not       *)
(*   start, lac         fixed once the fences cover the ensemble           *)
(*   round, upTo, asking, next, answers    the reads, in rounds            *)
(*   end      the last entry of the ledger, once it is found               *)
(*   p        the write-backs and the private fragments                    *)
(***************************************************************************)
NoRecoverer ==
    [phase |-> "none", known |-> meta, frozen |-> LastOf(meta.frags), count |-> 0, fenced |-> {},
     unfenced |-> {}, start |-> NoEntry, lac |-> NoEntry, round |-> 0, upTo |-> NoEntry, asking |-> FALSE,
     next |-> 0, answers |-> [x \in {} |-> 0], end |-> None, p |-> NewPending(meta.frags, NoEntry),
     writing |-> FALSE]

(* The ensemble that is fenced and read is the one of the metadata now, and never another one. Reading
   starts no lower than its first entry (T21). *)
BeginFencing(x) ==
    [x EXCEPT !.phase = "fencing", !.frozen = LastOf(meta.frags), !.count = Len(meta.frags),
              !.start = LastOf(meta.frags).first - 1, !.lac = LastOf(meta.frags).first - 1]

(* What a recoverer does with the metadata before it has fenced: nothing is written if somebody has
   announced a recovery already (D9). *)
Begun(x) ==
    LET y == [x EXCEPT !.known = meta, !.writing = FALSE]
    IN IF meta.state = "CLOSED" THEN [y EXCEPT !.phase = "done"]
       ELSE IF meta.state = "OPEN" THEN [y EXCEPT !.phase = "announcing", !.writing = TRUE]
       ELSE BeginFencing(y)

RecWrites(r, x) ==
    IF ~x.writing THEN {}
    ELSE IF x.phase = "announcing" THEN {MetaWrite(r, x.known.version, "IN_RECOVERY", x.known.frags, None)}
    ELSE {MetaWrite(r, x.known.version, "CLOSED",
                    SubSeq(x.known.frags, 1, x.count - 1) \o SubSeq(x.p.frags, x.count, Len(x.p.frags)),
                    x.end)}

RecStarts(r) ==
    /\ rec[r].phase = "none"
    /\ rec' = [rec EXCEPT ![r] = Begun(NoRecoverer)]
    /\ msgs' = msgs \union RecWrites(r, rec'[r])
    /\ UNCHANGED <<meta, bookie, owner>>

RecSendsFence(r, slot) ==
    LET x == rec[r]
    IN /\ x.phase = "fencing"
       /\ msgs' = msgs \union {[type |-> "fence", from |-> r, to |-> x.frozen.ens[slot], slot |-> slot]}
       /\ UNCHANGED <<meta, bookie, owner, rec>>

(* Coverage ends fencing. The start, and the LAC that write-backs carry, do not change after it. *)
RecHearsFence(r, m) ==
    LET x == rec[r]
        y == [x EXCEPT !.fenced = @ \union {m.slot}, !.unfenced = @ \ {m.slot},
                       !.lac = Max2(@, m.lac),
                       !.start = Max2(@, IF Guaranteed THEN m.lafr ELSE m.lac)]   \* T17
    IN /\ m \in msgs /\ m.type = "fenced" /\ m.to = r
       /\ x.phase = "fencing"
       /\ rec' = [rec EXCEPT ![r] =
            IF Covers(y.fenced)
            THEN [y EXCEPT !.phase = "reading", !.p = NewPending(y.known.frags, y.start),
                           !.next = y.start + 1, !.asking = TRUE]
            ELSE y]
       /\ UNCHANGED <<meta, bookie, owner, msgs>>

RecFenceFails(r, slot) ==
    LET x == rec[r]
        y == [x EXCEPT !.unfenced = @ \union {slot}]
    IN /\ x.phase = "fencing" /\ slot \notin x.fenced
       /\ rec' = [rec EXCEPT ![r] = IF Covers(Slots \ y.unfenced) THEN y ELSE [y EXCEPT !.phase = "failed"]]
       /\ UNCHANGED <<meta, bookie, owner, msgs>>

(* Each read goes to the write set of its entries in the frozen ensemble, and to nobody else. *)
RoundAsks(r, x) ==
    UNION { { [type |-> "readask", from |-> r, to |-> x.frozen.ens[slot], slot |-> slot, first |-> first,
               last |-> x.upTo, stride |-> Stride, round |-> x.round] : slot \in WriteSet(first) }
            : first \in x.next..(x.next + Stride - 1) }

NoAnswer == [state |-> "waiting", found |-> {}, through |-> NoEntry, unknown |-> FALSE]

RecAsks(r) ==
    LET x == rec[r]
        y == [x EXCEPT !.round = @ + 1, !.asking = FALSE, !.upTo = x.next + Max2(RoundEntries, Stride) - 1,
                       !.answers = [k \in UNION { WriteSet(first) \X {first % Stride}
                                                  : first \in x.next..(x.next + Stride - 1) } |-> NoAnswer]]
    IN /\ x.phase = "reading" /\ x.asking
       /\ rec' = [rec EXCEPT ![r] = y]
       /\ msgs' = msgs \union RoundAsks(r, y)
       /\ UNCHANGED <<meta, bookie, owner>>

(* Recovery closes once every entry that it read has its quorum (T19; A.4 rule 5). *)
MaybeClose(x) ==
    IF x.phase = "closing" /\ IsDrained(x.p) THEN [x EXCEPT !.writing = TRUE] ELSE x

(* A.0, the verdict of a recovery read: entry by entry, in order, as far as the answers go. *)
RECURSIVE Judged(_)
Judged(x) ==
    LET e == x.next
        a(s) == x.answers[<<s, e % Stride>>]
        says(s) == a(s).state = "answered" /\ e <= a(s).through /\ e \notin a(s).found
        absent == { s \in WriteSet(e) : says(s) /\ ~a(s).unknown }
        unknown == { s \in WriteSet(e) : a(s).state = "failed" \/ (says(s) /\ a(s).unknown) }
        waiting == { s \in WriteSet(e) : a(s).state = "waiting" }
    IN IF e > x.upTo THEN [x EXCEPT !.asking = TRUE]
       ELSE IF \E s \in WriteSet(e) : e \in a(s).found       \* one copy is enough (D2, T27)
       THEN Judged([x EXCEPT !.next = e + 1, !.p = Push(@, 1)])
       ELSE IF Cardinality(absent) >= NegativeQuorum         \* T03; a time-out is none of these (T04)
       THEN MaybeClose([x EXCEPT !.end = e - 1, !.phase = "closing"])
       ELSE IF Cardinality(absent) + Cardinality(unknown) = WQ
       THEN [x EXCEPT !.phase = "failed"]
       ELSE IF waiting = {} THEN [x EXCEPT !.asking = TRUE]
       ELSE x

(* Answers of earlier rounds are ignored. The first verdict on an entry is final. *)
RecHearsRead(r, m) ==
    LET x == rec[r]
        key == <<m.slot, m.first % Stride>>
        answer == IF m.through < m.first THEN [NoAnswer EXCEPT !.state = "failed"]
                  ELSE [state |-> "answered", found |-> m.found, through |-> m.through, unknown |-> m.unknown]
    IN /\ m \in msgs /\ m.type = "read" /\ m.to = r
       /\ x.phase = "reading" /\ m.round = x.round /\ ~x.asking
       /\ rec' = [rec EXCEPT ![r] = Judged([x EXCEPT !.answers[key] = answer])]
       /\ msgs' = msgs \union RecWrites(r, rec'[r])
       /\ UNCHANGED <<meta, bookie, owner>>

RecReadFails(r, slot, first) ==
    LET x == rec[r]
        key == <<slot, first % Stride>>
    IN /\ x.phase = "reading" /\ ~x.asking /\ key \in DOMAIN x.answers
       /\ x.answers[key].state = "waiting"
       /\ rec' = [rec EXCEPT ![r] = Judged([x EXCEPT !.answers[key].state = "failed"])]
       /\ msgs' = msgs \union RecWrites(r, rec'[r])
       /\ UNCHANGED <<meta, bookie, owner>>

IsWritingBack(x) == x.phase \in {"reading", "closing"}

(* Write-backs pass the fence, and carry the LAC and LAFR of the start (T25, T31, T32). *)
RecSends(r, slot, first, last) ==
    LET x == rec[r]
    IN /\ IsWritingBack(x)
       /\ MaySend(x.p, slot, first, last)
       /\ msgs' = msgs \union {Frame(r, x.p, slot, first, last, x.lac, IF Guaranteed THEN x.start ELSE NoEntry,
                                     TRUE)}
       /\ rec' = [rec EXCEPT ![r].p = Sent(@, slot, last)]
       /\ UNCHANGED <<meta, bookie, owner>>

(* Every step that may end the write-backs. *)
RecDoes(r, p) ==
    /\ IsWritingBack(rec[r])
    /\ rec' = [rec EXCEPT ![r] = MaybeClose([@ EXCEPT !.p = p])]
    /\ msgs' = msgs \union RecWrites(r, rec'[r])
    /\ UNCHANGED <<meta, bookie, owner>>

RecHearsOk(r, m) ==
    /\ m \in msgs /\ m.type = "added" /\ m.to = r /\ m.status = "ok"
    /\ IsWritingBack(rec[r]) /\ IsCurrent(rec[r].p, m)
    /\ RecDoes(r, AddOk(rec[r].p, SlotOf(rec[r].p, m.bookie), m.first, m.last))

RecFails(r, slot) == RecDoes(r, Fail(rec[r].p, slot))
RecConnects(r, slot) == RecDoes(r, Connect(rec[r].p, slot))

(* A recoverer keeps its changes to itself until the closing write (T12). *)
RecChanges(r, repl) ==
    LET p == rec[r].p
        stripped == Strip(p, DOMAIN repl, FALSE)
    IN /\ IsWritingBack(rec[r]) /\ ~IsDrained(p)
       /\ IsReplacement(p, repl, FALSE)
       /\ RecDoes(r, Install(stripped, repl, ChangedFragments(stripped, repl, stripped.frags)))

(* After a write of its own: whoever lost the closing race adopts the winner's end (T20). *)
RecReads(r) ==
    LET x == rec[r]
        y == [x EXCEPT !.writing = FALSE]
    IN /\ x.writing /\ x.phase \in {"announcing", "closing"}
       /\ rec' = [rec EXCEPT ![r] =
            IF meta.state = "CLOSED" THEN [y EXCEPT !.phase = "done", !.known = meta]
            ELSE IF x.phase = "announcing" THEN Begun(x)
            ELSE IF meta.state = "IN_RECOVERY" /\ LastOf(meta.frags) = x.frozen
            THEN MaybeClose([y EXCEPT !.known = meta])
            ELSE [y EXCEPT !.phase = "failed"]]
       /\ msgs' = msgs \union RecWrites(r, rec'[r])
       /\ UNCHANGED <<meta, bookie, owner>>

-----------------------------------------------------------------------------
(***************************************************************************)
(* Repair of one fragment (rules 20 to 24, 13). It has no state of its own:*)
(* what it knows is in the messages. It reads entries by the rules of an   *)
(* ordinary read, which is not a step here: a copy is made of an entry that*)
(* a bookie of its write set has.                                          *)
(***************************************************************************)

(* Rule 20: the last fragment of a ledger that is not closed belongs to its writer. *)
MayBeRepaired(i) == i < Len(meta.frags) \/ meta.state = "CLOSED"
EndOf(i) == IF i < Len(meta.frags) THEN meta.frags[i + 1].first - 1 ELSE meta.last

(* All that is certainly committed. Copies carry it as their LAC (rule 23), or what it was earlier. *)
SurelyCommitted == IF meta.state = "CLOSED" THEN meta.last ELSE LastOf(meta.frags).first - 1

(* What a slot of a fragment should hold: all of it, not only its ends (rule 24). *)
ShareOfSlot(i, slot) == { e \in meta.frags[i].first..EndOf(i) : slot \in WriteSet(e) }

CopyTo(new, entries, lac) ==
    [type |-> "add", from |-> Repairer, to |-> new, tenure |-> 0, first |-> Min(entries), last |-> Max(entries),
     entries |-> entries, lac |-> lac, lafr |-> NoEntry, recovery |-> TRUE, boots |-> bookie[new].boots]

RepairCopies(new, entries, lac) ==
    /\ entries # {} /\ lac \in NoEntry..SurelyCommitted
    /\ \E i \in 1..Len(meta.frags), slot \in Slots :
        /\ MayBeRepaired(i) /\ entries \subseteq ShareOfSlot(i, slot)
        /\ \A s \in Slots : meta.frags[i].ens[s] # new
        /\ \A e \in entries : \E s \in WriteSet(e) : e \in bookie[meta.frags[i].ens[s]].durable
    /\ msgs' = msgs \union {CopyTo(new, entries, lac)}
    /\ UNCHANGED <<meta, bookie, owner, rec>>

(* A new bookie has confirmed a copy since it last booted. *)
IsCopied(new, e) ==
    \E a \in msgs :
        /\ a.type = "add" /\ a.from = Repairer /\ a.to = new /\ e \in a.entries
        /\ a.boots = bookie[new].boots
        /\ AddAnswer(a, "ok") \in msgs

Renamed(i, slot, new) == [meta.frags EXCEPT ![i].ens[slot] = new]

RenamingWrite(i, slot, new) ==
    [type |-> "write", from |-> Repairer, version |-> meta.version, state |-> meta.state,
     frags |-> Renamed(i, slot, new), last |-> meta.last, boots |-> bookie[new].boots]

(* The new bookie is named once every copy is durable. *)
MayBeNamed(i, slot, new) == \A e \in ShareOfSlot(i, slot) : IsCopied(new, e)

RepairWrites(i, slot, new) ==
    /\ MayBeRepaired(i) /\ \A s \in Slots : meta.frags[i].ens[s] # new
    /\ MayBeNamed(i, slot, new)
    /\ msgs' = msgs \union {RenamingWrite(i, slot, new)}
    /\ UNCHANGED <<meta, bookie, owner, rec>>

-----------------------------------------------------------------------------
FirstMeta == [state |-> "OPEN", frags |-> <<[first |-> 0, ens |-> FirstEnsemble]>>, last |-> None, version |-> 1]

Init ==
    /\ meta = FirstMeta
    /\ bookie = [b \in Bookies |-> NewBookie]
    /\ owner = NewOwner(meta)
    /\ rec = [r \in Recoverers |-> NoRecoverer]
    /\ msgs = {}

-----------------------------------------------------------------------------
(* Invariants of part C, over what is stored and what was acknowledged. *)

Copies(e) ==
    { s \in WriteSet(e) : LET b == bookie[FragmentOf(meta.frags, e).ens[s]] IN e \in b.durable \/ b.limbo }

NoTruncation == meta.state = "CLOSED" => owner.p.lac <= meta.last
AckedAtAckQuorum == \A e \in 0..owner.p.lac : Cardinality(Copies(e)) >= AQ
ClosedAtAckQuorum == meta.state = "CLOSED" => \A e \in 0..meta.last : Cardinality(Copies(e)) >= AQ
LacIsCommitted == \A b \in Bookies :
    bookie[b].lac <= owner.p.lac \/ (bookie[b].copied /\ bookie[b].lac <= meta.last)
LacWithinClosedLedger == meta.state = "CLOSED" => \A b \in Bookies : bookie[b].lac <= meta.last
FailedMeansAbsent == owner.fate = "absent" /\ owner.p.lap > owner.p.lac
                        => meta.state = "CLOSED" /\ meta.last <= owner.p.lac
CloseAgree == \A r \in Recoverers : rec[r].phase = "done" => rec[r].known.last = meta.last
FragmentsMonotone == \A i, j \in 1..Len(meta.frags) : i < j => meta.frags[i].first < meta.frags[j].first
Promised == Max({owner.p.lafr} \union { bookie[b].lafr : b \in Bookies })
GwqClosed == Guaranteed /\ meta.state = "CLOSED" => \A e \in 0..meta.last : Cardinality(Copies(e)) = WQ
GwqTail == Guaranteed => \A e \in 0..(LastOf(meta.frags).first - 1) : Cardinality(Copies(e)) = WQ
LafrTruth == Guaranteed => \A e \in 0..Promised : Cardinality(Copies(e)) = WQ
NegativeReadFinal == \A r \in Recoverers :
    rec[r].end # None /\ rec[r].phase # "none" => owner.p.lac <= rec[r].end

Safety ==
    /\ NoTruncation /\ AckedAtAckQuorum /\ ClosedAtAckQuorum /\ LacIsCommitted /\ LacWithinClosedLedger
    /\ FailedMeansAbsent /\ CloseAgree /\ FragmentsMonotone /\ GwqClosed /\ GwqTail /\ LafrTruth
    /\ NegativeReadFinal
=============================================================================
