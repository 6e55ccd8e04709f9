---------------------------- MODULE SequencesExt ----------------------------
(* The operators of the community module of this name that BookKeeperProtocol.tla uses, written anew. *)
LOCAL INSTANCE Sequences

Last(s) == s[Len(s)]
=============================================================================
