"""Places on the body: one fixed list, and what sources call them.

The list is coarse, since sources are: HAM10000 names fifteen places (Tschandl, Rosendahl and
Kittler, "The HAM10000 dataset", Sci Data 2018, table 3), each of which has its place here.
"""

from typing import Literal, get_args

Site = Literal[
    "scalp",
    "face",
    "ear",
    "neck",
    "chest",
    "abdomen",
    "back",
    "trunk",
    "arm",
    "hand",
    "genitals",
    "leg",
    "foot",
    "palm or sole",
]
"""`trunk` is chest, abdomen or back where a source does not say which; acral: palm or sole."""
SITES: tuple[Site, ...] = get_args(Site)

_SYNONYMS: dict[str, Site] = {
    "upper extremity": "arm",
    "lower extremity": "leg",
    "genital": "genitals",
    "torso": "trunk",
    "upper limb": "arm",
    "lower limb": "leg",
    "head": "face",
    "acral": "palm or sole",
    "palms/soles": "palm or sole",
    # The ISIC archive's names (ImageMarkup/isic-metadata).
    "anterior torso": "trunk",
    "lateral torso": "trunk",
    "posterior torso": "back",
    "anterior trunk": "trunk",
    "lateral trunk": "trunk",
    "posterior trunk": "back",
    "anterior chest": "chest",
    "lateral chest": "chest",
    "anterior abdomen": "abdomen",
    "lateral abdomen": "abdomen",
    "palm of hand": "palm or sole",
    "sole of foot": "palm or sole",
    "acral palms or soles": "palm or sole",
    "genital region": "genitals",
    "anogenital region": "genitals",
}

_SNOMED: dict[Site, str] = {
    "scalp": "43067004 79951008 21672008 61719002 41695006",
    "face": (
        "73897004 85803001 68598004 36141000 23747009 362916000 367577003 68698007 244097004 "
        "37671003 88089004 40069000 66934001 27887005 37108007 113179006 110488009 84365009 "
        "314395006 16621002 79283007 41310005 16251004 89545001 60819002 80243003 48477009 "
        "45206002"
    ),
    "ear": (
        "1902009 38407007 51098001 57726007 2059009 86409001 79313003 45591000 24483006 86719006 "
        "79502000 117590005 28347008"
    ),
    "neck": "43081002 182329002 11584001 5272005 4658004 34926004 76072005 45048000",
    "chest": "816094009 244106003 72005009 66288003 699915001 54468004 244107007 51185008 76752008",
    "abdomen": "75093004 30598005 367578008 699914002 315003 699935000 818981001 113345001",
    "back": "66643007 699893008 113182001 244111001 77568009",
    "trunk": (
        "22943007 280387007 181491009 76261009 22180002 63029009 39687006 54440003 46862004 "
        "129791004"
    ),
    "arm": (
        "371311000 17957002 70559009 45981001 52876008 24527008 181536004 41550009 72939005 "
        "53120007 40983000 14975008 16982005 8205005"
    ),
    "hand": (
        "33712006 770809003 770815003 770818001 770816002 770817006 770810008 244169007 281642007 "
        "85562004 7569003 76505004"
    ),
    "genitals": (
        "60944009 279479008 279867004 279478000 4019005 59112000 29353003 7991003 73058008 "
        "128252004 128253009 35900000 48014002 76723005 244117002 81992007 244118007 18857001 "
        "23213005 18911002"
    ),
    "leg": (
        "371304004 181553006 25763004 61248009 181564009 181563003 73958006 84507004 47224004 "
        "4578000 61685007 68367000 30021000 72696002"
    ),
    "foot": (
        "60496002 770820003 770821004 770822006 770823001 770825008 770805009 52034004 56459004 "
        "29707007"
    ),
    "palm or sole": "70887009 84607009 89784008 35739000 699909001 52953006 699919007 26795005",
}
"""SNOMED CT codes of DICOM's context group 4029 (dermatology) and of common regions; the first is
the place itself. Sides, and parts that lie in no place of the list, are left out."""
SNOMED_SITES: dict[str, Site] = {
    code: site for site, codes in _SNOMED.items() for code in codes.split()
}


def site_of(text: str) -> str:
    """Return the place that a text names; a text that names none of the list stays as it is."""
    plain = " ".join(text.casefold().split())
    return _SYNONYMS.get(plain, plain)
