------------------------------ MODULE Amended ------------------------------
(***************************************************************************)
(* The published BookKeeperProtocol with amendments: the points at which   *)
(* Ledger.tla differs from it. Amendments names those that are in force, so*)
(* TLC can show that Ledger.tla refines the published module with all of   *)
(* them, and with none of them left out. An amendment only adds steps.     *)
(*                                                                         *)
(*   "verdicts"  a verdict need not wait until all other reads of the entry*)
(*               were answered or lost. In the published action two        *)
(*               conjuncts say what becomes of the messages after a        *)
(*               verdict: this answer is used up; so are all other reads.  *)
(*               Both hold only if no other read is under way              *)
(*   "joining"   who joins a recovery writes nothing (D9)                  *)
(*   "order"     adds and their answers may overtake each other            *)
(*   "highest"   a bookie keeps the highest LAC that it was told (D10)     *)
(*   "frozen"    a write-back carries a LAC from before it (D11)           *)
(*   "base"      a recoverer counts its own LAC from where it started, and *)
(*               not from the first entry of the ledger (D16)              *)
(*   "changes"   an ensemble change is more than one step: first the       *)
(*               confirmations of those that leave are forgotten, then the *)
(*               new fragment is written (T14, T15). It needs no time-out, *)
(*               and any bookie may come in                                *)
(*   "carried"   what those that stay confirm in between may settle. The   *)
(*               new fragment begins before it all the same, and it is sent*)
(*               to the replacement (D14)                                  *)
(*   "unfit"     a replacement that refuses adds need not end the owner    *)
(***************************************************************************)
EXTENDS BookKeeperProtocol

CONSTANT Amendments

ReadsAfterVerdict(cid) ==
    LET c == clients[cid]
    IN /\ c.status = STATUS_IN_RECOVERY
       /\ c.recovery_phase = ReadWritePhase
       /\ \E msg \in DOMAIN messages :
            /\ msg.cid = cid
            /\ ReceivableMessageOfType(messages, msg, ReadResponseMessage)
            /\ msg.entry.id = c.curr_read_entry
            /\ LET read_responses == c.read_responses \union {msg}
                   read_status == ReadStatus(c, read_responses)
               IN CASE read_status = OK -> ReadPositive(c, msg, read_responses)
                    [] read_status = NoSuchEntry -> ReadNegative(c, msg, read_responses)
                    [] OTHER -> FALSE
            /\ UNCHANGED << bookie_vars, meta_vars >>

JoinsRecovery(cid) ==
    /\ clients[cid].status = Nil
    /\ meta_status = STATUS_IN_RECOVERY
    /\ clients' = [clients EXCEPT ![cid] =
                            [@ EXCEPT !.status            = STATUS_IN_RECOVERY,
                                      !.meta_version      = meta_version,
                                      !.recovery_phase    = FencingPhase,
                                      !.fragments         = meta_fragments,
                                      !.curr_fragment     = Last(meta_fragments),
                                      !.recovery_ensemble = Last(meta_fragments).ensemble]]
    /\ SendMessagesToEnsemble(GetFencedReadLacRequests(clients[cid], Last(meta_fragments).ensemble))
    /\ UNCHANGED << bookie_vars, meta_vars >>

InOrder(msg) == "order" \in Amendments \/ IsEarliestMsg(msg)

TakesAdd ==
    \E msg \in DOMAIN messages :
        /\ ReceivableMessageOfType(messages, msg, AddEntryRequestMessage)
        /\ InOrder(msg)
        /\ \/ b_fenced[msg.bookie] = FALSE
           \/ msg.recovery = TRUE
        /\ b_entries' = [b_entries EXCEPT ![msg.bookie] = @ \union {msg.entry}]
        /\ b_lac' = [b_lac EXCEPT ![msg.bookie] =
                        IF "highest" \in Amendments /\ @ > msg.lac THEN @ ELSE msg.lac]
        /\ ProcessedOneAndSendAnother(msg, GetAddEntryResponse(msg, TRUE))
        /\ UNCHANGED << b_fenced, clients, meta_vars >>

RefusesAdd ==
    \E msg \in DOMAIN messages :
        /\ ReceivableMessageOfType(messages, msg, AddEntryRequestMessage)
        /\ InOrder(msg)
        /\ msg.recovery = FALSE
        /\ b_fenced[msg.bookie] = TRUE
        /\ ProcessedOneAndSendAnother(msg, GetAddEntryResponse(msg, FALSE))
        /\ UNCHANGED << bookie_vars, clients, meta_vars >>

ConfirmedFrom(c, confirmed) ==
    IF "base" \in Amendments
    THEN Max({c.lac} \union { id \in DOMAIN confirmed :
                \A id1 \in (c.lac + 1)..id : Cardinality(confirmed[id1]) >= AckQuorum })
    ELSE MaxContiguousConfirmedEntry(confirmed)

HearsAddOk(cid) ==
    LET c == clients[cid]
    IN /\ c.status \in {STATUS_OPEN, STATUS_IN_RECOVERY}
       /\ \E msg \in DOMAIN messages :
            /\ msg.cid = cid
            /\ ReceivableMessageOfType(messages, msg, AddEntryResponseMessage)
            /\ InOrder(msg)
            /\ msg.recovery = (c.status = STATUS_IN_RECOVERY)
            /\ msg.success = TRUE
            /\ msg.bookie \in c.curr_fragment.ensemble
            /\ LET confirmed == AddToConfirmed(c, msg.entry.id, msg.bookie)
                   lac == ConfirmedFrom(c, confirmed)
               IN clients' = [clients EXCEPT ![cid] =
                                [c EXCEPT !.confirmed = confirmed,
                                          !.lac = IF lac > @ THEN lac ELSE @,
                                          !.pending_add_ops = MayBeRemoveFromPending(c, confirmed, lac)]]
            /\ MessageProcessed(msg)
       /\ UNCHANGED << bookie_vars, meta_vars >>

HearsAddFence(cid) ==
    /\ clients[cid].status = STATUS_OPEN
    /\ \E msg \in DOMAIN messages :
        /\ msg.cid = cid
        /\ ReceivableMessageOfType(messages, msg, AddEntryResponseMessage)
        /\ InOrder(msg)
        /\ msg.recovery = FALSE
        /\ msg.success = FALSE
        /\ msg.bookie \in clients[cid].curr_fragment.ensemble
        /\ clients' = [clients EXCEPT ![cid] = [@ EXCEPT !.status = CLIENT_WITHDRAWN]]
        /\ MessageProcessed(msg)
        /\ UNCHANGED << bookie_vars, meta_vars >>

WritesBack(cid) ==
    LET c == clients[cid]
    IN /\ c.status = STATUS_IN_RECOVERY
       /\ c.recovery_phase = ReadWritePhase
       /\ \E op \in c.pending_add_ops :
            /\ NotSentWrite(c, op)
            /\ ~\E op2 \in c.pending_add_ops :
                /\ NotSentWrite(c, op2)
                /\ op2.entry.id < op.entry.id
            /\ \E lac \in 0..c.lac :
                SendMessagesToEnsemble(
                    GetAddEntryRequests([c EXCEPT !.lac = lac], op.entry, c.curr_fragment.ensemble, TRUE))
       /\ UNCHANGED << bookie_vars, clients, meta_vars >>

StripsBookies(cid) ==
    LET c == clients[cid]
    IN /\ c.status = STATUS_OPEN
       /\ \E gone \in SUBSET c.curr_fragment.ensemble :
            clients' = [clients EXCEPT ![cid].confirmed =
                [id \in DOMAIN c.confirmed |-> IF id > c.lac THEN c.confirmed[id] \ gone ELSE c.confirmed[id]]]
       /\ UNCHANGED << bookie_vars, meta_vars, messages >>

(* Meanwhile nothing is sent to those that leave. The owner may not know yet that its fragment is written. *)
SendsToSome(cid) ==
    LET c == clients[cid]
        entry == [id |-> c.lap + 1, data |-> c.lap + 1]
    IN /\ c.status = STATUS_OPEN /\ entry.id <= SendLimit
       /\ \E known \in SUBSET Bookies, number \in 1..c.curr_fragment.id : \E some \in SUBSET known :
            /\ SendMessagesToEnsemble(GetAddEntryRequests(c, entry, some, FALSE))
            /\ clients' = [clients EXCEPT ![cid] =
                [c EXCEPT !.lap = entry.id,
                          !.pending_add_ops = @ \union {[entry |-> entry, fragment_id |-> number,
                                                        ensemble |-> known]}]]
       /\ UNCHANGED << bookie_vars, meta_vars >>

(* Nobody who leaves may count for an entry of the new fragment. *)
WritesFragment(cid) ==
    LET c == clients[cid]
        latest == c.lac + 1
    IN /\ c.status = STATUS_OPEN /\ meta_status = STATUS_OPEN /\ c.meta_version = meta_version
       /\ \E first \in (IF "carried" \in Amendments THEN c.curr_fragment.first_entry_id ELSE latest)..latest :
          \E ensemble \in SUBSET Bookies :
            LET updated == UpdatedFragments(c, first, ensemble)
            IN /\ Cardinality(ensemble) = WriteQuorum
               /\ \A id \in { id \in DOMAIN c.confirmed : id >= first } :
                    c.confirmed[id] \intersect (c.curr_fragment.ensemble \ ensemble) = {}
               /\ meta_fragments' = updated
               /\ meta_version' = meta_version + 1
               /\ clients' = [clients EXCEPT ![cid] =
                    [c EXCEPT !.meta_version = meta_version + 1, !.fragments = updated,
                              !.curr_fragment = Last(updated)]]
       /\ UNCHANGED << bookie_vars, meta_status, meta_last_entry, messages >>

SendsCarried(cid) ==
    LET c == clients[cid]
    IN /\ c.status = STATUS_OPEN
       /\ \E id \in c.curr_fragment.first_entry_id..c.lac, b \in c.curr_fragment.ensemble :
            SendMessagesToEnsemble(GetAddEntryRequests(c, [id |-> id, data |-> id], {b}, FALSE))
       /\ UNCHANGED << bookie_vars, clients, meta_vars >>

IgnoresRefusal(cid) ==
    /\ clients[cid].status = STATUS_OPEN
    /\ \E msg \in DOMAIN messages :
        /\ msg.cid = cid
        /\ ReceivableMessageOfType(messages, msg, AddEntryResponseMessage)
        /\ msg.success = FALSE
        /\ \A id \in DOMAIN clients[cid].confirmed : msg.bookie \notin clients[cid].confirmed[id]
        /\ MessageProcessed(msg)
    /\ UNCHANGED << bookie_vars, clients, meta_vars >>

AmendedNext ==
    \/ Next
    \/ TakesAdd \/ RefusesAdd
    \/ \E cid \in Clients :
        \/ "verdicts" \in Amendments /\ ReadsAfterVerdict(cid)
        \/ "joining" \in Amendments /\ JoinsRecovery(cid)
        \/ "frozen" \in Amendments /\ WritesBack(cid)
        \/ "changes" \in Amendments /\ (StripsBookies(cid) \/ SendsToSome(cid) \/ WritesFragment(cid))
        \/ "carried" \in Amendments /\ SendsCarried(cid)
        \/ "unfit" \in Amendments /\ IgnoresRefusal(cid)
        \/ HearsAddOk(cid)
        \/ HearsAddFence(cid)

AmendedSpec == Init /\ [][AmendedNext]_vars
=============================================================================
