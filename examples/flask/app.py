"""Tickets: Flask, Flask-SQLAlchemy and SQLite. The ticket's row and the answer are one commit.

``TICKETS`` names the SQLite file, ``tickets.db`` by default.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from flask import Blueprint, Flask, abort, g, jsonify, request
from flask_sqlalchemy import SQLAlchemy
from sqlalchemy.exc import IntegrityError

from semel import Engine
from semel.integrations.flask import Semel

db = SQLAlchemy()
semel = Semel(caller=lambda: g.user)  # asked inside the view, when authenticate() has run
tickets = Blueprint("tickets", __name__)
mails: list[str] = []  # stands for your mail provider


class Ticket(db.Model):  # type: ignore[name-defined,misc]
    """A seat and its owner."""

    id = db.Column(db.Integer, primary_key=True)
    seat = db.Column(db.Integer, nullable=False, unique=True)
    owner = db.Column(db.String(50), nullable=False)


@tickets.before_app_request
def authenticate() -> None:
    """The token is the name: replace this by your authentication."""
    g.user = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if g.user not in ("alice", "bob"):
        abort(401)


@tickets.post("/tickets")
@semel.command("tickets.buy", effects="atomic")
def buy() -> Any:
    """Buy a seat, once."""
    ticket = Ticket(seat=request.get_json()["seat"], owner=g.user)
    db.session.add(ticket)
    try:
        db.session.commit()  # with the record, when the answer is known
    except IntegrityError:
        return {"error": "this seat is taken"}, 409
    return {"ticket": ticket.id, "seat": ticket.seat}, 201


@tickets.post("/tickets/<int:number>/mail")
@semel.command("tickets.mail", effects="external")
def mail(number: int) -> Any:
    """Send a ticket, once."""
    mails.append(semel.permit.key_for("mail"))  # a key for the provider, the same in every retry
    return {"ticket": number, "mails": len(mails)}, 202


@tickets.get("/tickets")
def list_tickets() -> Any:
    """List the tickets."""
    found = db.session.scalars(db.select(Ticket).order_by(Ticket.id))
    return jsonify([{"seat": each.seat, "owner": each.owner} for each in found])


def create_app() -> Flask:
    """The application, as ``flask run`` and WSGI servers find it."""
    file = Path(os.environ.get("TICKETS", "tickets.db")).absolute()
    app = Flask("tickets")
    app.config["SQLALCHEMY_DATABASE_URI"] = f"sqlite:///{file}"
    db.init_app(app)
    app.register_blueprint(tickets)
    semel.init_app(app, Engine.connect(f"sqlite:///{file}"))
    with app.app_context():
        db.create_all()
    return app
