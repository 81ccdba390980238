"""Who speaks in English prose: by the words beside a quotation, by what its paragraph tells, or by turns.

A paragraph has one speaker, unless it says otherwise. Pronouns stand for the last one named whom they fit; where two
people talk and nothing is said, they take turns. All of this is our own choice.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from rolellm.construct.scripts.quotes import Paragraph, Quotation, Surroundings, Verdict, verdicts, word_list
from rolellm.construct.scripts.reading import Hints

# --- The words by which English prose brings in speech, and by which it names people


_PAST = word_list(
    "said asked addressed replied answered cried exclaimed shouted whispered murmured muttered added continued began "
    "returned rejoined remarked observed declared demanded inquired enquired repeated responded called yelled "
    "screamed shrieked bellowed roared growled grunted snarled snapped barked hissed groaned moaned sighed "
    "sobbed wailed laughed chuckled giggled grinned smiled gasped panted breathed stammered stuttered faltered "
    "mumbled grumbled complained protested objected argued insisted urged pleaded begged implored entreated "
    "admitted confessed agreed assented conceded explained suggested proposed offered announced proclaimed "
    "commented noted pointed persisted pursued proceeded resumed concluded finished interrupted interposed "
    "interjected broke retorted countered echoed chimed quoth spoke told ordered commanded instructed warned "
    "advised cautioned promised assured reassured swore vowed guessed wondered thought reflected mused reckoned "
    "ventured volunteered sneered jeered scoffed mocked teased joked drawled croaked rasped squeaked squealed "
    "chirped purred cooed crooned sang recited read prayed greeted congratulated apologised apologized corrected "
    "affirmed asserted averred maintained stated reported related recounted ejaculated vociferated soliloquized "
    "soliloquised expostulated remonstrated thundered boomed spat fumed raged stormed blurted burst sniffed "
    "snorted sniffled whimpered whined queried questioned pressed probed mouthed hollered hailed hummed intoned "
    "recalled remembered repined sputtered spluttered trilled wheezed yawned lied acknowledged counselled "
    "counseled decided denied went"
)
_PRESENT = word_list(
    "says asks replies answers cries exclaims shouts whispers murmurs mutters adds continues begins returns "
    "remarks observes declares demands inquires repeats responds calls yells screams shrieks growls grunts "
    "snarls snaps hisses groans sighs sobs laughs chuckles gasps breathes stammers mumbles grumbles complains "
    "protests objects argues insists urges pleads begs admits confesses agrees explains suggests announces "
    "comments notes persists interrupts retorts echoes drawls croaks purrs sings reads tells orders commands "
    "warns advises promises assures thinks wonders muses goes say ask reply cry"
)
#: Verbs of speech.
VERB = "(?i:" + "|".join(sorted({*_PAST, *_PRESENT}, key=lambda word: (-len(word), word))) + ")"
#: Verbs that speak only where nothing else can be meant: ``he smiled`` after a full stop is an action.
WEAK = frozenset(
    word_list(
        "laughed chuckled giggled grinned smiled sighed went goes broke pointed burst thought wondered noted read "
        "reads told tells thinks wonders finished decided lied denied remembered recalled pressed offered spoke "
        "sniffed snorted yawned nodded"
    )
)
_TITLE = (
    r"(?:Mr|Mrs|Ms|Messrs|Dr|St|Prof|Capt|Col|Lt|Sgt|Gen|Rev|Hon)\.?|Miss|Sir|Lady|Lord|Madame|Madam|Monsieur|"
    r"Mademoiselle|Master|Mistress|Captain|Colonel|Major|General|Lieutenant|Sergeant|Inspector|Constable|Detective|Professor|Doctor|Father|"
    r"Mother|Brother|Sister|Uncle|Aunt|Cousin|Nurse|King|Queen|Prince|Princess|Duke|Duchess|Count|Countess|Baron|Baroness|"
    r"Squire|Parson|President|Judge|Old|Young|Little|Poor|Dear|Don|Dame|Friar|Saint"
)
_CAPITAL = r"[A-Z\u00c0-\u00de][\w\u2019'-]*[\w]|[A-Z]\.?(?=\s[A-Z])|[A-Z](?!\w)"
_PARTICLE = r"(?:of\s+the|of|de\s+la|de|du|des|della|di|da|van\s+der|van|von|le|la|the)"
NAME = (
    rf"(?:M(?:rs?|iss)\.?\s+and\s+M(?:rs?|iss)\.?\s+|(?:{_TITLE})\s+)*(?:{_CAPITAL})"
    rf"(?:\s+(?:{_PARTICLE}\s+)?(?:{_CAPITAL})){{0,4}}"
)
_NO_NOUN = (
    r"(?:with|in|to|at|and|as|who|whom|whose|which|that|from|by|for|on|upon|when|while|after|before|but|or|so|then|again|"
    r"quickly|softly|quietly|slowly|suddenly|into|through|over|looking|turning|without|if|because|still|once|almost|rather|"
    r"very|too|now|at|is|was|were|had|has|did|would|could|" + VERB + r")"
)
_NOUN = rf"(?!{_NO_NOUN}\b)[A-Za-z\u00c0-\u024f][\w\u2019'-]*"
#: ``the old man``, ``his wife``, ``one of the boys``, ``the King of Hearts``.
DESCRIBED = (
    r"(?:(?:one|another|some|all|both|each|several|most|two|three|four|five|six)\s+of\s+)?"
    r"(?:[Tt]he|[Aa]n?|[Hh]is|[Hh]er|[Mm]y|[Oo]ur|[Tt]heir|[Yy]our|[Ii]ts|[Tt]his|[Tt]hat|[Aa]nother|[Ss]ome|[Oo]ne|[Bb]oth|"
    rf"[Tt]wo|[Tt]hree)\s+{_NOUN}(?:\s+(?!\w+ly\b){_NOUN}){{0,3}}(?:\s+of\s+(?:the\s+)?[A-Z]\w+)?"
)
SOMEBODY = r"(?:[Ss]omeone|[Ss]omebody|[Ee]veryone|[Ee]verybody|[Aa]nother|[Oo]thers?|[Oo]ne|[Aa]ll|[Bb]oth)"
PRONOUN = r"(?:[Hh]e|[Ss]he|[Tt]hey|[Ii]t|I|[Ww]e|[Yy]ou)"
_ADVERB = (
    r"(?:\w+ly|then|at\s+last|at\s+length|only|again|just|also|still|now|once|once\s+more|soon|always|never|had|has|at\s+once|"
    r"half|almost|merely|would|could|did|all|both|ever|even|too|finally|presently|in\s+turn|have|’d|'d|rather|quite|thus|"
    r"here|there|first|next|much|often|sometimes)"
)
ADVERBS = rf"(?:{_ADVERB},?\s+){{0,3}}"
#: ``Tom's mother``.
_OWNED = rf"(?:(?:{_TITLE})\s+)*(?:[A-Z][\w-]*\s+){{0,3}}[A-Z][\w-]*[’']s?\s+{_NOUN}(?:\s+(?!\w+ly\b){_NOUN}){{0,2}}"
SUBJECT = (
    rf"(?P<pronoun>{PRONOUN})(?!\w|[’'])|(?P<owned>{_OWNED})|(?P<name>{NAME})|(?P<described>{DESCRIBED})|"
    rf"(?P<somebody>{SOMEBODY})\b"
)

#: Words that begin with a capital without being a name.
COMMON = frozenset(
    word_list(
        "A An The This That These Those And But Or Nor So Then Now When While As If Though Although Because Since "
        "Until Unless After Before At In On Of For From To With Without By Into Upon Over Under Again Still Yet Once "
        "Here There Where Why How What Who Whose Which He She It We You They I His Her Its My Our Your Their Him Me "
        "Us Them All Both Each Every Some Any No Not Never None One Two Three Four Five Six Seven Eight Nine Ten "
        "Another Other Others Such Same Only Just Even Ever Always Often Yes Oh Ah Well O Ha Hum Alas Perhaps Maybe "
        "Indeed However Meanwhile Presently Suddenly Finally Soon Later Next First Last Everyone Everybody Someone "
        "Somebody Nobody Nothing Something Everything Anyone Anybody Anything Chapter Is Was Were Are Be Been Being "
        "Do Does Did Done Have Has Had Can Could Will Would Shall Should May Might Must Let Come Came Go Went Look "
        "Good Great God Heaven Heavens Lord Christ Jesus Christmas Sunday Monday Tuesday Wednesday Thursday Friday "
        "Saturday January February March April June July August September October November December English French "
        "German American England London Mr Mrs Ms Miss Sir Madam Ma’am Dear Sirs Gentlemen Ladies Please Thank "
        "Thanks Quite Very Too More Most Much Many Few Little Old Young Poor Out Up Down Off Away Back Against "
        "Between Among Through Across Behind Beside Besides Beyond Near"
    )
) | {verb.capitalize() for verb in (*_PAST, *_PRESENT)}
MALE = frozenset(
    word_list(
        "mr sir lord king prince duke count baron monsieur master father brother uncle man boy gentleman husband son "
        "squire parson friar footman butler captain colonel major general lieutenant sergeant lad fellow waiter "
        "policeman sailor soldier gryphon grandfather nephew priest bishop emperor don coachman widower landlord"
    )
)
FEMALE = frozenset(
    word_list(
        "mrs ms miss lady queen princess duchess countess baroness madame madam mademoiselle mistress mother sister "
        "aunt woman girl wife daughter nurse dame maid housekeeper waitress grandmother niece governess nun empress "
        "widow landlady"
    )
)
#: Titles that say nothing of who is meant when they stand alone.
TITLES = (
    MALE
    | FEMALE
    | frozenset(
        word_list(
            "old young poor little dear dr doctor professor inspector detective majesty highness st darling love papa "
            "mamma mama dad daddy mum mummy mom grandpa grandma granny"
        )
    )
)
#: Given names of men.
MEN = frozenset(
    word_list(
        "adam albert alexander alfred andrew anthony arthur basil ben benjamin bernard bertram bill billy "
        "bob bobby charles charley charlie christopher cyril dan daniel david dennis dick donald douglas ed "
        "eddie edgar edmund edward edwin eric ernest eugene felix francis frank fred frederick geoffrey "
        "george gerald gilbert godfrey graham greg gregory guy harold harry hector henry herbert horace "
        "howard hugh humphrey isaac ivan jack jacob jake james jasper jeff jeremy jerry jim jimmy joe joel "
        "john johnny jonathan joseph joshua julian karl keith kenneth kevin lawrence leo leonard lewis "
        "lionel louis lucas luke mark martin matthew maurice max michael mike miles mortimer nathan "
        "nathaniel ned neil nicholas nick noah norman oliver oscar owen patrick paul percy peter phil philip "
        "quentin ralph raymond reginald richard robert robin roger roland ronald rupert samuel sam sebastian "
        "sidney simon stephen steve stuart ted theodore thomas tim timothy toby tom tommy tony ursus victor "
        "vincent walter wilfred will william willie winston"
    )
)
#: Given names of women.
WOMEN = frozenset(
    word_list(
        "abigail ada adelaide agatha agnes alice amanda amelia amy anastasia angela ann anna anne annie "
        "antonia audrey augusta barbara beatrice becky bella bertha bess bessie beth betsy betty bridget "
        "caroline catherine cecilia charlotte chloe christina clara clarissa clementine constance cordelia "
        "cynthia daisy daphne deborah diana dinah dolly dora doris dorothy edith eleanor eliza elizabeth "
        "ella ellen elsie emily emma estella esther ethel eva eve eveline evelyn fanny felicity fiona flora "
        "florence frances georgiana gertrude ginny gladys grace gwendolen hannah harriet hazel helen "
        "henrietta hermione hester hilda honoria ida irene iris isabel isabella ivy jane janet jean jennifer "
        "jenny jessica jessie jo joan joanna josephine joyce judith julia juliet karen kate katharine "
        "katherine kathleen kitty laura lavinia leah letty lily linda lisa lizzie lizzy lois lorna louisa "
        "louise lucy lydia mabel madeleine maggie marcia margaret marian maria marianne marie marjorie "
        "martha mary matilda maud meg mildred millicent mina minnie miranda miriam molly muriel myrtle nancy "
        "nell nelly nora olive olivia ophelia pamela patience patty pauline penelope phoebe phyllis polly "
        "priscilla prudence rachel rebecca rosalind rose rosie ruth sally sarah selina sophia sophie stella "
        "susan susannah sybil sylvia tess theresa ursula vera veronica victoria violet viola virginia wendy "
        "winifred zoe"
    )
)
#: What leads up to something written.
WRITTEN = re.compile(
    r"\b(?:sign|label|headline|inscription|notice|placard|poster|title|motto|caption|printed|written|engraved|inscribed|"
    r"painted|wrote|ran|read|reads|lettering|postmarked|signed)[:,]?$"
)
#: Words before the subject at the beginning of a sentence.
FIRST_WORDS = (
    r"(?i:(?:and|but|then|so|at\s+last|at\s+length|again|presently|suddenly|finally|now|here|meanwhile|however|still|yet|soon|later|"
    r"for|when|as|while|once|next|instead|perhaps|indeed|at\s+once|at\s+this|after\s+a\s+(?:moment|while|pause)|"
    r"for\s+a\s+(?:moment|while)|\w+ly)[,\s]+)*"
)


# --- The people of an English novel: their names, whether *he* or *she* is said of them, and who is spoken to


_NAME = re.compile(rf"(?<![\w.])(?:[Tt]he\s+(?=[A-Z]))?(?:{NAME})")
_SENTENCE = re.compile(r"[^.!?\n]+(?:(?<=Mr|Dr|St|Ms)\.[^.!?\n]+|(?<=Mrs)\.[^.!?\n]+)*")
_POSSESSIVE = re.compile(r"[’']s?$")
_GENDERED = re.compile(r"\b(?:(?P<he>he|his|him|himself)|(?P<she>she|her|hers|herself))\b", re.IGNORECASE)
_VOCATIVE = re.compile(
    rf"(?:^|[,;.!?—–-]\s*)(?:[Mm]y\s+|[Oo]h,?\s+|O\s+)?(?:[Dd]ear(?:est)?\s+)?(?P<name>{NAME})\s*(?=[,.!?;—–]|$)"
)
_ACTS = re.compile(
    rf"(?:^|[.!?\n]\s*)(?P<name>(?:[Tt]he\s+(?=[A-Z]))?{NAME})\s+(?:\w+ly\s+)?(?:was|had|came|went|stood|sat|took|gave|put|rose|ran|saw|knew|"
    r"felt|turned|looked|shook|let|made|got|held|kept|left|fell|threw|stopped|nodded|is|has|[a-z]+ed)\b"
)


@dataclass(frozen=True, slots=True)
class Mention:
    """A person named in narration.

    Attributes:
        name: As written there.
        place: Where, counted in the passage.
    """

    name: str
    place: int


class People:
    """Everybody who is named in a text.

    Args:
        names: The names under which people speak, and those given.
        he: How often *he* is said of each.
        she: How often *she* is said of each.
    """

    def __init__(self, names: Iterable[str], he: Counter[str], she: Counter[str]) -> None:
        self.names = frozenset(names)
        self._he, self._she = he, she
        self._by_last: dict[str, set[str]] = {}
        for name in self.names:
            for part in name.split():
                self._by_last.setdefault(part, set()).add(name)

    def mentions(self, passage: str) -> Iterator[Mention]:
        """The people named in a passage, in order."""
        for match in _NAME.finditer(passage):
            name = known_name(match.group())
            for candidate, offset in _parts(name):
                if candidate in self.names:
                    yield Mention(candidate, match.start() + offset)
                    break

    def gender(self, name: str) -> str | None:
        """``he`` or ``she``; ``None`` where it is not known."""
        titles = {word.strip(".").casefold() for word in re.findall(r"[A-Za-z]+\.?", name)}
        if titles & FEMALE:
            return "she"
        if titles & MALE:
            return "he"
        parts = [name, *name.split()] if " " in name else [name]
        he, she = (next((counts[part] for part in parts if counts[part]), 0) for counts in (self._he, self._she))
        if max(he, she) > 2 * min(he, she) + 3:
            return "he" if he > she else "she"
        first = name.split()[0].casefold()
        if first in MEN:
            return "he"
        if first in WOMEN:
            return "she"
        if he >= 2 * she and he > 0:
            return "he"
        return "she" if she >= 2 * he and she > 0 else None

    def fits(self, name: str, pronoun: str) -> bool:
        """Whether a pronoun may stand for a name."""
        gender = self.gender(name)
        return gender is None or gender == pronoun

    def addressed(self, said: str) -> set[str]:
        """The people spoken to by name."""
        found = set()
        for match in _VOCATIVE.finditer(said[:400]):
            name = known_name(match["name"])
            if name in self.names or (name.split()[-1:] and name.split()[-1] in self._by_last):
                found.add(name)
        return found

    def is_same(self, name: str, other: str) -> bool:
        """Whether two names share their parts, as ``Holmes`` and ``Mr. Holmes`` do."""
        one, two = {*_bare(name)}, {*_bare(other)}
        return bool(one and two) and (one <= two or two <= one)


def _parts(name: str) -> Iterator[tuple[str, int]]:
    yield name, 0
    if name.startswith(("the ", "The ")):
        yield name[4:], 4
    words_of = name.split()
    for count in range(len(words_of) - 1, 0, -1):
        yield " ".join(words_of[:count]), 0
    for first in range(1, len(words_of)):
        rest = " ".join(words_of[first:])
        yield rest, name.find(rest)


def _bare(name: str) -> list[str]:
    return [
        word.strip(".,").casefold()
        for word in name.split()
        if word.strip(".,").casefold()
        not in ("the", "old", "young", "mr", "mrs", "miss", "ms", "dr", "sir", "lady", "lord", "little", "poor")
    ]


def known_name(text: str) -> str:
    """A run of capitalised words without what is no name at its beginning or end; empty where nothing is left."""
    parts = _POSSESSIVE.sub("", " ".join(text.split())).split()
    article = ""
    if parts and parts[0] in ("the", "The") and len(parts) > 1:
        article, parts = "the ", parts[1:]
    while parts and parts[0] in COMMON and not (len(parts) > 1 and parts[0].strip(".").casefold() in _TITLES):
        parts = parts[1:]
        article = ""
    while parts and (parts[-1] in COMMON or parts[-1].casefold() in ("of", "the", "de", "von", "van")):
        parts = parts[:-1]
    return article + " ".join(parts) if parts else ""


_TITLES = frozenset({"old", "young", "poor", "little", "dear", "mr", "mrs", "ms", "miss", "sir", "lady", "lord"})


def learn_people(cues: Iterable[str], passages: Sequence[tuple[str, str, str | None]], given: Iterable[str]) -> People:
    """The people of a text, from who speaks in it, who is spoken to, and who acts.

    Args:
        cues: Names that stand beside a verb of speech.
        passages: Before each quotation: the narration, then what is said, and ``he`` or ``she`` if that says it.
        given: Names that are known.
    """
    names = {name for name in map(known_name, cues) if name} | {name for name in given if name}
    called = Counter(name for _, said, _ in passages for name in _called(said))
    acting = Counter(name for told, _, _ in passages for name in _acting(told))
    names |= {
        name
        for name, count in (called + acting).items()
        if count > 1 or called[name] or " " in name or name.casefold() in MEN | WOMEN
    }
    names |= {name[4:] for name in names if name.startswith("the ")}
    names = {name for name in names if not is_title(name)} | {*given}
    people = People(names, Counter(), Counter())
    counts = {"he": Counter[str](), "she": Counter[str]()}
    for told, _, pronoun in passages:
        name = None
        for match in _SENTENCE.finditer(told):
            found = {mention.name: mention.place for mention in people.mentions(match.group())}
            if len(found) == 1:
                name = next(iter(found))
            start = found.get(name, 0) if name is not None else 0
            if name is not None and len(found) <= 1:
                for gendered in _GENDERED.finditer(match.group(), start):
                    counts["he" if gendered["he"] else "she"][name] += 1
            if len(found) > 1:
                name = None
        if name is not None and pronoun in counts:
            counts[pronoun][name] += 2
    return People(names, counts["he"], counts["she"])


def is_title(name: str) -> bool:
    """Whether a name is nothing but titles, as ``Sir`` or ``the King``'s ``King`` without its article."""
    return not name.startswith("the ") and all(word.strip(".").casefold() in TITLES for word in name.split())


def _called(said: str) -> Iterator[str]:
    for match in _VOCATIVE.finditer(said[:400]):
        # At the beginning it may be any word; after a comma it is somebody.
        if match.group().startswith(","):
            name = known_name(match["name"])
            if name and not is_title(name):
                yield name


def _acting(told: str) -> Iterator[str]:
    for match in _ACTS.finditer(told):
        name = known_name(match["name"])
        if name:
            yield name


# --- The words beside an English quotation: whether they make it speech, and whom they name


_INVERTED = re.compile(rf"[\s,—–-]*(?:and\s+)?{ADVERBS}(?P<verb>{VERB})\s+{ADVERBS}(?:{SUBJECT})")
_STRAIGHT = re.compile(rf"[\s,—–-]*(?:and\s+|but\s+)?(?:{SUBJECT})(?:,[^,.!?]{{1,60}},)?\s+{ADVERBS}(?P<verb>{VERB})\b")
BEGINNING = re.compile(rf"{FIRST_WORDS}(?:{SUBJECT})")
_VERB = re.compile(rf"\b{VERB}\b")
_BEFORE_VERB = re.compile(rf"(?:^|[\s,;—–])(?:{SUBJECT})(?:,[^,.!?]{{1,60}},)?\s+{ADVERBS}(?P<verb>{VERB})\b")
_AFTER_COMMA = re.compile(rf",\s+(?:{SUBJECT})\s")
LAST_SENTENCE = re.compile(
    r"(?:.*(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.!?][’'\")\s]*\s)?(?P<sentence>[^\s].*)$", re.DOTALL
)
_ENDS_IN_VERB = re.compile(rf"\b{VERB}$")
# Verbs whose object may be a quoted word: ``he called it``.
_MAY_NAME = re.compile(r"\b(?:called|calls|read|reads|thought|went|told|spoke|noted|sang)$")
_ENDED = tuple(".,!?…—–-;:~")
# A quoted phrase of at most so many words in the middle of a sentence is no speech: our choice.
_WORD_QUOTED = 6


@dataclass(frozen=True, slots=True)
class Cue:
    """Words that say who speaks: a name, or a pronoun that stands for one."""

    name: str | None
    pronoun: str | None
    is_name: bool = False


def is_spoken(text: str, paragraphs: Sequence[Paragraph], quotation: Quotation) -> bool:
    """Whether a quotation is speech: no quoted word, no title, nothing written."""
    if quotation.is_resumed:
        return True
    paragraph = paragraphs[quotation.paragraph]
    said = text[quotation.start : quotation.end].strip()
    before = text[max(paragraph.start, quotation.left - 80) : quotation.left].rstrip()
    after = text[quotation.right : quotation.right + 80]
    if WRITTEN.search(before):
        return False
    if not before or before[-1] in ":,.!?;—–-’”\")…'":
        is_whole = said.endswith(_ENDED) or not before or quotation.right >= paragraph.end
        return is_whole or bool(_INVERTED.match(after) or _STRAIGHT.match(after)) or before[-1] in ":,"
    if _ENDS_IN_VERB.search(before) and (said.endswith(_ENDED) or said[:1].isupper()):
        return not _MAY_NAME.search(before) or said.endswith(("!", "?"))
    if len(said.split()) <= _WORD_QUOTED and not said[:1].isupper():
        return False
    return said.endswith(tuple("!?.,—")) and said[:1].isupper() and len(said.split()) > 3


def cue_after(tail: str, ending: str) -> Cue | None:
    """What stands after a quotation: ``said Alice``, ``the Rabbit cried``, ``he asked``."""
    inverted = _INVERTED.match(tail)
    if inverted and not (inverted["verb"] in WEAK and ending not in ",!?—–"):
        return cue_of(inverted)
    straight = _STRAIGHT.match(tail)
    if straight and not (ending == "." or (straight["verb"] in WEAK and ending not in (",",))):
        return cue_of(straight)
    return None


def cue_before(own: str, *, is_colon: bool) -> Cue | None:
    """What stands before a quotation: ``Alice said``, ``he turned to her and cried``, ``said the King``."""
    found = LAST_SENTENCE.match(own)
    sentence = found["sentence"] if found else own
    verbs = [*_VERB.finditer(sentence)]
    if not verbs and not is_colon:
        return None
    inverted = _INVERTED.match(sentence)
    if inverted and inverted.end() > len(sentence) - 40:
        return cue_of(inverted)
    direct = next(reversed([*_BEFORE_VERB.finditer(sentence)]), None)
    if direct is not None and verbs and direct.end("verb") >= verbs[-1].start():
        return cue_of(direct)
    beginning = BEGINNING.match(sentence)
    if beginning and beginning["name"] and beginning["name"].endswith("ing"):
        # ``Turning to the others, he``: no name, but what its subject does besides.
        beginning = next(reversed([*_AFTER_COMMA.finditer(sentence)]), None)
    return cue_of(beginning) if beginning else None


def cue_of(match: re.Match[str]) -> Cue | None:
    """Whom a match of `SUBJECT` names."""
    if match["pronoun"]:
        return Cue(None, match["pronoun"])
    if match["name"]:
        name = known_name(match["name"])
        return Cue(name, None, is_name=True) if name else None
    described = " ".join((match["owned"] or match["described"] or match["somebody"] or "").split())
    if not described or match["owned"]:
        return Cue(described, None) if described else None
    # ``the Rabbit`` is a name, ``the old man`` is none.
    is_name = described[:4] in ("the ", "The ") and described[4].isupper()
    return Cue(described[0].lower() + described[1:], None, is_name)


# --- Who speaks in English prose: by the words beside a quotation, by what its paragraph tells, or by turns


_SENTENCES = re.compile(r"(?<!Mr)(?<!Mrs)(?<!Ms)(?<!Dr)(?<!St)[.!?]\s+\S")
_REACH_LATER, _LONGEST_EXCHANGE, _LONGEST_TAIL = 20, 20, 300


@dataclass(slots=True)
class _Exchange:
    """Who has spoken in a scene, by paragraphs."""

    number: int
    speakers: list[str | None] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    addressed: set[str] = field(default_factory=set)
    recent: list[str] = field(default_factory=list)
    called: list[str] = field(default_factory=list)
    guessed: int = 0

    def last(self) -> str | None:
        return self.speakers[-1] if self.speakers else None

    def partner(self) -> str | None:
        """The other one of the two who speak."""
        last = self.last()
        return next((name for name in reversed(self.speakers[-6:-1]) if name is not None and name != last), None)


def attribute_en(
    text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
) -> list[Verdict]:
    """A verdict on each quotation of an English text.

    Args:
        text: The text.
        paragraphs: Its paragraphs.
        quotations: Its quotations, in order.
        hints: `names` are looked for in the narration, even if they never stand beside a verb of speech.
    """
    spoken = [is_spoken(text, paragraphs, quotation) for quotation in quotations]
    kept = [quotation for quotation, is_spoken in zip(quotations, spoken, strict=True) if is_spoken]
    return verdicts(spoken, _Attribution(text, paragraphs, kept, hints).speakers())


class _Attribution(Surroundings):
    """Goes through the spoken quotations of a text in order."""

    def __init__(
        self, text: str, paragraphs: Sequence[Paragraph], quotations: Sequence[Quotation], hints: Hints
    ) -> None:
        super().__init__(text, paragraphs, quotations)
        everything = range(len(quotations))
        self.cues = [self._cue(index) for index in everything]
        self.people: People = learn_people(
            (cue.name for cue in self.cues if cue is not None and cue.name is not None and cue.is_name),
            [(self.gap(index), self.said(index).strip(), _gender(self.cues[index])) for index in everything],
            hints.names,
        )

    def speakers(self) -> list[str | None]:
        """One for each quotation; ``None`` where nobody could be found."""
        found: list[str | None] = []
        exchange = _Exchange(-1)
        for index, quotation in enumerate(self.quotations):
            number = self.scene(index)
            if number != exchange.number:
                exchange = _Exchange(number)
            exchange.recent = [
                *exchange.recent[-6:],
                *(mention.name for mention in self.people.mentions(self.gap(index))),
            ]
            speaker = self._speaker(index, exchange)
            found.append(speaker)
            said = self.people.addressed(self.said(index).strip())
            exchange.called = [*exchange.called[-5:], *sorted(said)]
            if exchange.places and (exchange.places[-1] == quotation.paragraph or quotation.is_resumed):
                exchange.speakers[-1] = speaker
                exchange.places[-1] = quotation.paragraph
                exchange.addressed |= said
            else:
                exchange.speakers.append(speaker)
                exchange.places.append(quotation.paragraph)
                exchange.addressed = said
        return found

    def _own(self, index: int) -> str:
        quotation = self.quotations[index]
        paragraph = self.paragraphs[quotation.paragraph]
        if paragraph.start == quotation.left and quotation.paragraph and index and not quotation.is_resumed:
            before = self.paragraphs[quotation.paragraph - 1]
            if self.text[before.end - 1] == ":" and not before.is_heading:
                paragraph = before
        return self.text[max(paragraph.start, self.begin(index)) : quotation.left]

    def _is_first(self, index: int) -> bool:
        """Whether a quotation is the first of its paragraph."""
        return not index or self.quotations[index - 1].paragraph != self.quotations[index].paragraph

    def _cue(self, index: int) -> Cue | None:
        own = self._own(index).strip()
        if own.endswith((":", ",", "—", "–", "-")) and (self._is_first(index) or _SENTENCES.search(own)):
            cue = cue_before(own.rstrip(":,—–-"), is_colon=own.endswith(":"))
            if cue is not None:
                return cue
        return cue_after(self.tail(index)[:_LONGEST_TAIL], self.said(index).strip()[-1:])

    def _speaker(self, index: int, exchange: _Exchange) -> str | None:
        quotation, cue = self.quotations[index], self.cues[index]
        if quotation.is_resumed and cue is None:
            return exchange.last()
        is_first = self._is_first(index)
        if cue is not None and cue.name is not None:
            exchange.guessed = 0
            return self._full(cue.name)
        if cue is not None and cue.pronoun is not None:
            exchange.guessed = 0
            return self._meant(cue.pronoun.casefold(), index, exchange)
        if not is_first:
            return exchange.last()
        later = self._later(index)
        if later is not None and later.name is not None:
            exchange.guessed = 0
            return self._full(later.name)
        if later is not None and later.pronoun is not None:
            return self._meant(later.pronoun.casefold(), index, exchange)
        own = self._own(index).strip()
        told = self._acting(own, index, exchange, is_last=True)
        told = told or (self._acting(self.tail(index)[:_LONGEST_TAIL].strip(), index, exchange, is_last=False))
        if told is not None:
            exchange.guessed = 0
            return told
        return None if own else self._taking_turns(index, exchange)

    def _later(self, index: int) -> Cue | None:
        """What is said of the next quotations of the same paragraph."""
        following = index + 1
        while following < min(len(self.quotations), index + _REACH_LATER) and not self._is_first(following):
            if self.cues[following] is not None:
                return self.cues[following]
            following += 1
        return None

    def _full(self, name: str) -> str:
        return " ".join(name.split())

    def _meant(self, pronoun: str, index: int, exchange: _Exchange) -> str | None:
        """Whom a pronoun beside a quotation stands for."""
        if pronoun == "i":
            return "I"
        if pronoun not in ("he", "she"):
            return None
        last = exchange.last()
        goes_on = self.quotations[index].is_resumed or not self._is_first(index)
        if goes_on and last is not None and self.people.fits(last, pronoun):
            return last
        for mention in self.people.mentions(self._own(index)):
            if self.people.fits(mention.name, pronoun):
                return mention.name
        addressed = self.people.addressed(self.said(index).strip())
        is_adjacent = self._is_adjacent(index, exchange)
        candidates = [
            name
            for name in self._candidates(exchange, is_adjacent)
            if not any(self.people.is_same(name, other) for other in addressed)
        ]
        others = [
            name for name in candidates if not (is_adjacent and last is not None and self.people.is_same(name, last))
        ]
        known = next((name for name in others if self.people.gender(name) == pronoun), None)
        if known is not None:
            return known
        unknown = [name for name in others if self.people.gender(name) is None]
        if is_adjacent and last is not None and self.people.gender(last) == pronoun:
            return None if unknown else last
        return self._remembered(pronoun, exchange, last if is_adjacent else None) or next(iter(unknown), None)

    def _candidates(self, exchange: _Exchange, is_adjacent: bool) -> list[str]:
        told = [*reversed(exchange.recent)]
        spoken = [name for name in (exchange.partner(), exchange.last()) if name is not None]
        if not is_adjacent:
            return [*told, *reversed(spoken)]
        # ``a voice`` may be anybody's; whoever was named beside it is likelier.
        vague = [name for name in spoken if name.split()[0] in ("a", "an", "one", "another", "someone", "somebody")]
        named = [name for name in spoken if name not in vague]
        return [*exchange.addressed, *named[:1], *told, *named[1:], *vague]

    def _remembered(self, pronoun: str, exchange: _Exchange, but: str | None) -> str | None:
        for name in (*reversed(exchange.called), *reversed(exchange.speakers[-12:])):
            if name is not None and name != but and self.people.gender(name) == pronoun:
                return name
        return None

    def _acting(self, told: str, index: int, exchange: _Exchange, *, is_last: bool) -> str | None:
        """Who acts in the narration beside a quotation: the subject of its nearest sentence."""
        if not told:
            return None
        if is_last:
            found = LAST_SENTENCE.match(told)
            told = found["sentence"] if found else told
        beginning = BEGINNING.match(told)
        if beginning is None:
            return None
        if beginning["pronoun"]:
            pronoun = beginning["pronoun"].casefold()
            return "I" if pronoun == "i" else self._meant(pronoun, index, exchange)
        if beginning["name"]:
            name = known_name(beginning["name"])
            rest = told[beginning.end("name") :]
            if name in self.people.names and not rest.startswith(("’s", "'s", "’ ", "' ")):
                return name
        if beginning["described"] and not beginning["owned"]:
            name = known_name(beginning["described"])
            if name in self.people.names or name[4:] in self.people.names:
                return " ".join(beginning["described"].split())
        return None

    def _is_adjacent(self, index: int, exchange: _Exchange) -> bool:
        return bool(exchange.places) and self.quotations[index].paragraph - exchange.places[-1] <= 1

    def _taking_turns(self, index: int, exchange: _Exchange) -> str | None:
        if not self._is_adjacent(index, exchange) or exchange.guessed >= _LONGEST_EXCHANGE:
            return None
        last, candidate = exchange.last(), exchange.partner()
        if candidate is not None and last is not None and _is_related(candidate) and _is_related(last):
            # ``his wife`` and ``his lady`` may be one; whoever was spoken to is somebody else.
            candidate = next(reversed(exchange.called), None)
        if len(exchange.addressed) == 1:
            called = next(iter(exchange.addressed))
            if candidate is None or not self.people.is_same(called, candidate):
                candidate = called
        if candidate is None or last is None or self.people.is_same(candidate, last):
            return None
        if any(self.people.is_same(candidate, name) for name in self.people.addressed(self.said(index).strip())):
            return None
        exchange.guessed += 1
        return candidate


def _is_related(name: str) -> bool:
    return name.split()[0] in ("his", "her", "my", "their", "our", "your")


def _gender(cue: Cue | None) -> str | None:
    return cue.pronoun.casefold() if cue is not None and cue.pronoun is not None else None
