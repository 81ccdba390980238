"""The words by which English prose brings in speech, and by which it names people. Lists of our own making."""

from __future__ import annotations

import re

from rolellm.construct.scripts.attribution import word_list

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
