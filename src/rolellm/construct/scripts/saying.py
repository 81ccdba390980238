"""What names and verbs of saying look like in a novel."""

from __future__ import annotations

import re
from typing import Final

from rolellm.construct.scripts.reading import OPENERS

#: English verbs of saying.
VERBS: Final = (
    "said|replied|answered|cried|exclaimed|asked|inquired|enquired|demanded|remarked|observed|added|continued|returned|"
    "rejoined|repeated|responded|retorted|whispered|murmured|muttered|shouted|declared|began|called|says|replies|"
    "answers|cries|asks|adds|whispers"
)
_TITLE: Final = r"(?:(?:Mr|Mrs|Ms|Messrs|Mme|Mlle|Dr|St|Prof|Capt|Col|Gen|Lt|Sgt|Rev)\b\.?|M\.|Miss\b)"
_WORD: Final = rf"(?!{_TITLE})[A-Z\u00c0-\u00de](?:[\w-]|[’'](?!s\b)(?=\w)|(?<=\b[A-Z])\.)*"
#: A name in English: a run of capitalized words, with its title or article; ``I`` is one, too.
NAME: Final = (
    rf"(?>[Tt]he\s+)?(?>(?:{_TITLE}\s+)?{_WORD}(?:\s+(?:(?:of\s+the|of|de\s+la|de|du|van|von|the)\s+)?{_WORD})*)"
    r"(?![\w’'])(?!\s+(?:and|or)\s+(?:the\s+|his\s+|her\s+)?[A-Z])"
)
#: Chinese verbs of saying.
SAYS: Final = (
    "(?:说|說|问|問|答|回|回答|笑|喝|叫|喊|骂|罵|叹|嘆|歎|怒|哭|泣|应|應|叱|奏|告|禀|稟|谢|謝|谏|諫|劝|勸|嚷|对|對|呼|插嘴|接口)?"
    "(?:道|曰)|说|說|问|問|答|喊"
)
#: How it is said.
MANNER: Final = (
    "(?:大怒|大笑|大喜|大惊|大驚|大叫|大喝|冷笑|微笑|含笑|苦笑|失笑|陪笑|叹息|连忙|連忙|急忙|慌忙|厉声|厲聲|高声|高聲|大声|大聲|低声|低聲|"
    "轻声|轻轻|悄悄|缓缓|慢慢|只得|正色|抚掌|拍手|点头|點頭|摇头|搖頭|拱手|欠身|拜谢|顿首|叩头|从容|慨然|勃然|愤然|继续|接着|"
    "大|高|进|佯|暗|还|哭|泣|笑|怒|喜|惊|驚|叹|嘆|歎|忙|急|便|又|乃|遂|亦|也|即|因|却|卻|就|都|皆|復|复|方|才|再|忽|先|跪|拜|地)"
)
#: What parts clauses; for a class of characters.
PUNCTUATION: Final = r"。！？；，、：:,.!?;…—\s“”‘’「」『』\"'《》（）()"
#: What is not a part of names, and makes more of a clause than a name and a verb.
NO_NAME: Final = re.compile(
    "[他她它我你您俺咱吾汝尔爾某谁誰其此这這那哪之的了着著在与與和同对對向把被将將使令教叫唤喚命请請谓謂问問告语語言语说說话話道曰报報"
    "见見看听聽闻聞想只却卻又便就也都皆亦乃遂即且而所是有无無不未既已再忽正方才是为為以因于於到至来來去上下出入起前后後里裡内外中间時时"
    "个個们們众眾等人者一二三四五六七八九十两兩百千诗詩词詞书書古常俗偈歌赋赞声聲心口手头頭身笑哭怒喜惊叹骂喝叱指责拜谢]"
)
#: The commonest family names: a name of three characters begins with one, else its last is more often a verb.
FAMILIES: Final = frozenset(
    "赵趙钱錢孙孫李周吴吳郑鄭王冯馮陈陳褚卫衛蒋蔣沈韩韓杨楊朱秦许許何吕呂施张張孔曹严嚴华華金魏陶姜戚谢謝邹鄒喻苏蘇潘葛范範彭鲁魯韦韋马馬"
    "方俞任袁柳鲍鮑史唐费費薛雷贺賀倪汤湯罗羅毕畢郝安常于傅卞齐齊康余元顾顧孟黄黃萧蕭尹姚邵汪毛狄贝貝明戴宋庞龐熊纪紀舒屈项項祝董梁杜阮"
    "翟權楼樓蓝藍季贾賈江童郭梅林钟鐘徐邱骆駱高夏蔡田樊胡凌霍万萬卢盧莫丁邓鄧洪包石崔吉龚龔程邢裴陆陸荣榮翁荀甄曲封储段侯武刘劉龙龍叶葉司黎白蒲赖"
    "乔喬闻党譚谭牛边邊燕温莊庄晏柴瞿阎閻连習习向古易廖耿匡文寇广欧歐沃师巩聂晁冷辛简饶曾沙丰关關查红游权盖荊荆公欧阳诸諸葛宁寧仇祖刁暴"
)


def plain(name: str) -> str | None:
    """A name on one line; nothing of what opens a sentence and names nobody."""
    words = name.split()
    openers = OPENERS - {"the", "i"}
    while words and words[0].casefold() in openers:
        words = words[1:]
    return " ".join(words) if words and words != ["the"] else None
