"""Words by which readers tell names from other words, and tags from text; the lists are our own."""

from __future__ import annotations

from typing import Final


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: What stands before a colon in scripts and is nobody.
NOBODY: Final = _words(
    "act acts author by cast characters chapter contact copyright credit credits cut date directed director draft "
    "episode exterior font form http https interior language location note notes part persons place plot premise "
    "produced producer ps release scene scenes season setting source stage story summary synopsis teleplay time title "
    "to transcribed transcriber transcript translated translator warning written 时间 地点 人物 人 时 地 景 场景 场次 "
    "场 布景 背景 作者 标题 题目 剧名 片名 编剧 导演 主演 演员 字幕 简介 注 备注 说明 提示 集 出场人物 登场人物 "
    "登場人物 時間 地點 場景 編劇 導演 改编 原著 译者 序 序幕 尾声 幕 词曰 诗曰 赋曰 诗云 词云 经云 语云 古云 偈云 偈曰"
)

#: Words that open sentences and no name: a line such as "Listen: I have it" goes on with a speech.
OPENERS: Final = _words(
    "a after again ah all also alas although always an and another answer any are as at ay aye be because before "
    "behold better but by can come consider could did do does done each either else enough even every except false "
    "far few finally first for from further get give go good had has have he hear hence her here hers him his how "
    "however i if imagine in indeed is it its just last let like listen look may maybe me mine more most much must my "
    "nay never next no nobody none nor not nothing now o of oh on once one only or other our ours out over peace "
    "perhaps please question remember result rule same say second see she should since so some somebody something "
    "stay still such sure take tell than thank that the their them then there therefore these they thing think third "
    "this those though thus today tomorrow true two under unless until up us very wait was we well were what whatever "
    "when where whether which while who whom whose why will wish with without would yea yes yet you your yours"
)

#: Openers that open names, too, in lists of citizens and lords: in front of other words.
ORDINALS: Final = _words("all another both first second third other one two a an the")

#: Small words inside names.
PARTICLES: Final = _words(
    "a an and at au aux bin da dal de del den der des di du e el en for from ibn in la las le les los of off on or "
    "the to und van von vom with y zu zum c etc s"
)

#: What captions put into brackets that is heard and is nobody.
SOUNDS: Final = _words(
    "alarm all applause audience background bang barking beep bell bells both buzz cheering cheers chuckle chuckles "
    "clears clock coughs cries crowd crying door echo english exhales explosion foreign french gasp gasps german "
    "giggles groans growls grunts gunshot gunshots hisses horn hums inaudible indistinct inhales italian jazz laugh "
    "laughs laughter loudly mans moans mumbles music mutters no noise panting phone pants quietly rain roars russian "
    "scoffs screaming screams shouts shrieks sighs silence singing siren sirens sniffles sniffs snores sobs softly "
    "song sound spanish speaking static stammers theme thunder thud tv typing voice-over wails weeps whispers "
    "whistles whooping wind yells yelps 音乐 音樂 掌声 掌聲 笑 大笑 笑声 笑聲 哭 哭泣 叹气 嘆氣 敲门声 门铃 电话铃声 "
    "铃声 枪声 鼓掌 咳嗽 沉默 雷声 尖叫 歌声 欢呼 喘气"
)

#: Titles that a name may stand with or without.
HONORIFICS: Final = _words(
    "mr mister mrs miss ms dr doctor prof professor sir lord lady dame madam madame mme monsieur m mlle captain capt "
    "colonel col general gen major sergeant sgt lieutenant lt commander inspector detective officer agent king queen "
    "prince princess duke duchess count countess baron baroness emperor empress saint st father brother sister aunt "
    "uncle reverend rev judge president senator chief"
)

#: Those of women.
WOMENS_TITLES: Final = _words(
    "mrs miss ms lady dame madam madame mme mlle queen princess duchess countess baroness empress sister aunt"
)

#: Those of men.
MENS_TITLES: Final = _words("mr mister sir lord monsieur king prince duke count baron emperor brother uncle father")

#: With one of these, a name is as a rule somebody else's: Young MARCIUS is not MARCIUS.
OTHERS: Final = _words(
    "young younger old older elder little big senior junior sr jr ghost first second third fourth fifth sixth another "
    "other fake false dead mother mom dad son daughter wife husband widow servant voice all both and crowd"
)

#: Chinese titles behind a name.
TITLES_ZH: Final = _words(
    "将军 先生 小姐 大人 师父 姑娘 公子 老师 医生 教授 队长 大哥 大姐 老爷 丞相 军师 大王 大圣 行者 皇帝 王爷 將軍 "
    "師父 老師 醫生"
)

#: Tags of pages that scripts are cut out of, which part lines.
BLOCK_TAGS: Final = _words(
    "p br div body html main article section header footer center pre blockquote hr h1 h2 h3 h4 h5 h6 li ul ol dl dt "
    "dd table tbody thead tr td th title"
)

#: Tags of pages and subtitles that do not; anything else in angle brackets is text.
INLINE_TAGS: Final = _words(
    "a abbr b big c cite code del dfn em font i img ins kbd lang link mark meta q rp rt ruby s samp small span strike "
    "strong sub sup tt u v var wbr"
)
