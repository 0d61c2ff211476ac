"""Describes and packs what `cmake --install` laid into a folder, for scripts/package: the same bits from the same files.

package.py describe PREFIX VERSION EPOCH   lays down licences, and a list of them in SPDX's format, and makes links files
package.py tarball FOLDER FILE EPOCH       packs a folder
package.py deb FOLDER FILE VERSION EPOCH   packs a folder as a Debian package, which lays it down as /opt/troupe
"""

import datetime
import gzip
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

# What the sources of Kerberos 5 have together.
KRB5 = ("Brian-Gladman-2-Clause AND BSD-2-Clause AND (BSD-2-Clause OR GPL-2.0-or-later) AND BSD-2-Clause-first-lines AND BSD-3-Clause "
        "AND BSD-4-Clause AND CMU-Mach-nodoc AND FSFULLRWD AND HPND AND HPND-export2-US AND HPND-export-US "
        "AND HPND-export-US-acknowledgement AND HPND-export-US-modify AND ISC AND MIT AND MIT-CMU AND OLDAP-2.8 AND OpenVision")
# Debian 12's packages whose libraries are copied, and those that are compiled in, each with its licence as SPDX names it.
LICENCES = {
    "libboost1.74-dev": "BSL-1.0",
    "libbsd0": "BSD-3-Clause AND BSD-2-Clause AND ISC AND MIT",
    "libcereal-dev": "BSD-3-Clause",
    "libcli11-dev": "BSD-3-Clause",
    "libcom-err2": "LicenseRef-MIT-SIPB AND BSD-3-Clause",
    "cppzmq-dev": "MIT",
    "libebml5": "LGPL-2.1-or-later",
    "libedit2": "BSD-3-Clause",
    "libfmt-dev": "MIT WITH fmt-exception",
    "libgssapi-krb5-2": KRB5,
    "libjpeg62-turbo": "IJG AND BSD-3-Clause AND Zlib",
    "libk5crypto3": KRB5,
    "libkeyutils1": "LGPL-2.0-or-later",
    "libkrb5-3": KRB5,
    "libkrb5support0": KRB5,
    "libmatroska7": "LGPL-2.1-or-later",
    "libmd0": "BSD-3-Clause AND BSD-2-Clause AND Beerware",
    "libnorm1": "LicenseRef-NRL-NORM AND BSD-2-Clause",
    "libopenh264-7": "BSD-2-Clause",
    "libpcre2-8-0": "BSD-3-Clause WITH PCRE2-exception AND BSD-2-Clause",
    "libpgm-5.3-0": "LGPL-2.1-or-later",
    "libpng16-16": "libpng-2.0",
    "libsentencepiece0": "Apache-2.0 AND BSD-3-Clause",
    "libsodium23": "ISC AND BSD-2-Clause AND CC0-1.0",
    "libsqlite3-0": "blessing",
    "libssl3": "Apache-2.0",
    "libtinfo6": "X11-distribute-modifications-variant",
    "libutf8proc2": "MIT AND Unicode-DFS-2015",
    "libvpx7": "BSD-3-Clause",
    "libwebp7": "BSD-3-Clause",
    "libwebpdemux2": "BSD-3-Clause",
    "libxxhash-dev": "BSD-2-Clause",
    "libzmq5": "LGPL-3.0-or-later",
    "nlohmann-json3-dev": "MIT",
    "zlib1g": "Zlib",
}
COMPILED_IN = ["libboost1.74-dev", "libcereal-dev", "libcli11-dev", "cppzmq-dev", "libfmt-dev", "libxxhash-dev", "nlohmann-json3-dev"]
# LibTorch's wheels by the names of their dist-info; that of torch has GCC's libgomp.
WHEELS = {
    "torch": "BSD-3-Clause AND GPL-3.0-or-later WITH GCC-exception-3.1",
    "nvidia_cuda_runtime": "LicenseRef-NVIDIA-CUDA-Toolkit-EULA",
    "nvidia_cuda_cupti": "LicenseRef-NVIDIA-CUDA-Toolkit-EULA",
}
# Licences that SPDX has no name for: what they are called, and in which file of a prefix they are.
TEXTS = {
    "LicenseRef-NRL-NORM": ("Licence of NRL's NORM", "share/doc/troupe/licences/libnorm1/copyright"),
    "LicenseRef-MIT-SIPB": ("Licence of M.I.T.'s S.I.P.B.", "share/doc/troupe/licences/libcom-err2/notice"),
    "LicenseRef-NVIDIA-CUDA-Toolkit-EULA": ("NVIDIA CUDA Toolkit End User License Agreement",
                                            "lib/troupe/libtorch/nvidia_cuda_runtime-*/licenses/License.txt"),
}
# What Debian's copyright file of libcom-err2 leaves out.
COM_ERR = """Copyright 1997 by Theodore Ts'o.
Copyright 1987, 1988 by MIT Student Information Processing Board

Permission to use, copy, modify, and distribute this software and its documentation for any purpose is hereby granted,
provided that the names of M.I.T. and the M.I.T. S.I.P.B. not be used in advertising or publicity pertaining to
distribution of the software without specific, written prior permission. M.I.T. and the M.I.T. S.I.P.B. make no
representations about the suitability of this software for any purpose. It is provided "as is" without express or
implied warranty.
"""


def fail(text: str) -> None:
    sys.exit(f"package: {text}")


def ask(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        fail(f"{' '.join(command)}: {done.stderr.strip() or 'failed'}")
    return done.stdout


def packages_of(libraries: list) -> set:
    """The installed Debian packages that have these files."""
    owners = {library: set() for library in libraries}
    for line in ask("dpkg-query", "--search", *(f"*/{library}" for library in libraries)).splitlines():
        owner, path = line.split(": ", 1)
        owners[path.rsplit("/", 1)[1]].add(owner.split(":")[0])
    for library, found in owners.items():
        if not found & LICENCES.keys():
            fail(f"{library} is from {', '.join(sorted(found))}, whose licence is not in scripts/lib/package.py (packages are made on Debian 12)")
    return {owner for found in owners.values() for owner in found & LICENCES.keys()}


def package(name: str, version: str, licence: str) -> dict:
    """An entry of the list."""
    return {"SPDXID": "SPDXRef-" + name.replace("_", "-").replace("+", "-"), "name": name, "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
            "licenseDeclared": licence, "copyrightText": "NOASSERTION"}


def without_links(folder: pathlib.Path) -> None:
    """Makes each link in a folder the file that it leads to, and removes that: a wheel holds no links, and a library is asked for by one name."""
    targets = {link: link.resolve() for link in sorted(folder.iterdir()) if link.is_symlink()}
    for link, target in targets.items():
        link.unlink()
        shutil.copy2(target, link)
    for target in set(targets.values()):
        target.unlink()


def describe(prefix: pathlib.Path, version: str, epoch: int) -> None:
    libraries = prefix / "lib/troupe/libraries"
    without_links(libraries)
    documents = prefix / "share/doc/troupe"
    entries = [package("troupe", version, "Apache-2.0")]
    for name in sorted(packages_of([path.name for path in libraries.iterdir()]) | set(COMPILED_IN)):
        entries.append(package(name, ask("dpkg-query", "--show", "--showformat=${Version}", name), LICENCES[name]))
        into = documents / "licences" / name
        into.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(f"/usr/share/doc/{name}/copyright", into / "copyright")
        if name == "libcom-err2":
            (into / "notice").write_text(COM_ERR)
    for info in sorted((prefix / "lib/troupe/libtorch").glob("*.dist-info")):
        name, of = info.name.removesuffix(".dist-info").split("-")
        if name not in WHEELS:
            fail(f"the licence of {name} is not in scripts/lib/package.py (LibTorch for CPUs travels, not that for GPUs)")
        entries.append(package(name, of, WHEELS[name]))
    document = {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT", "name": f"troupe-{version}",
        "documentNamespace": "https://spdx.org/spdxdocs/troupe-" + hashlib.sha256(json.dumps(entries).encode()).hexdigest(),
        "creationInfo": {"created": datetime.datetime.fromtimestamp(epoch, datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: scripts/package"]},
        "packages": entries,
        "relationships": [{"spdxElementId": "SPDXRef-DOCUMENT", "relationshipType": "DESCRIBES", "relatedSpdxElement": "SPDXRef-troupe"}] +
                         [{"spdxElementId": "SPDXRef-troupe", "relationshipType": "DEPENDS_ON", "relatedSpdxElement": entry["SPDXID"]}
                          for entry in entries[1:]],
    }
    document["hasExtractedLicensingInfos"] = [
        {"licenseId": licence, "name": name, "extractedText": file.read_text()}
        for licence, (name, files) in TEXTS.items() for file in sorted(prefix.glob(files))]
    told = {info["licenseId"] for info in document["hasExtractedLicensingInfos"]}
    for entry in entries:
        for licence in re.findall(r"LicenseRef-[\w-]+", entry["licenseDeclared"]):
            if licence not in told:
                fail(f"the text of {licence}, of {entry['name']}, is missing")
    (documents / "troupe.spdx.json").write_text(json.dumps(document, indent=1) + "\n")


def tarball(folder: pathlib.Path, file: pathlib.Path, epoch: int) -> None:
    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = epoch
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    unfinished = file.with_name(file.name + ".part")
    with open(unfinished, "wb") as plain_file, gzip.GzipFile("", "wb", 6, plain_file, mtime=epoch) as packed, \
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        archive.add(folder, folder.name, filter=plain)  # entries of a folder are in the order of their names
    unfinished.rename(file)


def deb(folder: pathlib.Path, file: pathlib.Path, version: str, epoch: int) -> None:
    """Packs hard links to a folder's files, which stays as it is. What a shell looks for in /usr are links into /opt/troupe."""
    root = folder.with_name(folder.name + "-deb")
    prefix = root / "opt/troupe"
    shutil.copytree(folder, prefix, symlinks=True, copy_function=os.link)
    for place in [*(prefix / "bin").iterdir(), *(prefix / "share/man").rglob("*.1"), *(prefix / "share/bash-completion").rglob("*"),
                  *(prefix / "share/zsh").rglob("*"), *(prefix / "share/fish").rglob("*")]:
        if place.is_file():
            link = root / "usr" / place.relative_to(prefix)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to("/" + str(place.relative_to(root)))
    for path in root.rglob("*"):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
    size = sum(path.stat().st_size for path in prefix.rglob("*") if path.is_file())
    control = root / "DEBIAN/control"
    control.parent.mkdir()
    control.write_text(
        f"Package: troupe-engine\nVersion: {version}\nArchitecture: amd64\nMaintainer: the Troupe project\n"
        f"Installed-Size: {(size + 1023) // 1024}\nDepends: libc6 (>= 2.35), libstdc++6 (>= 12), libgomp1\nSection: graphics\n"
        "Priority: optional\nDescription: pictures and clips with diffusion models on many GPUs or CPUs\n"
        " The command, actors, gateway and page of Troupe, with LibTorch for CPUs.\n")
    unfinished = file.with_name(file.name + ".part")
    subprocess.run(["dpkg-deb", "--build", "--root-owner-group", "-Zgzip", "-z6", root, unfinished], check=True, stdout=subprocess.DEVNULL,
                   env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)})
    unfinished.rename(file)
    shutil.rmtree(root)


def main() -> None:
    verb, *rest = sys.argv[1:]
    if verb == "describe":
        describe(pathlib.Path(rest[0]), rest[1], int(rest[2]))
    elif verb == "deb":
        deb(pathlib.Path(rest[0]), pathlib.Path(rest[1]), rest[2], int(rest[3]))
    else:
        tarball(pathlib.Path(rest[0]), pathlib.Path(rest[1]), int(rest[2]))


if __name__ == "__main__":
    main()
